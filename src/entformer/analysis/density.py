"""How sparse rows are. In: `LayerRows`. Out: a number for every row, (B, H, Lq), NaN where there is no row (padding)."""

import numpy as np

from entformer.analysis.rows import Bools, Floats, Ints, LayerRows

BINS = 20


def density(rows: LayerRows) -> Floats:
    """The share of the visible keys that have weight, exact zeros left out (Correia et al. 2019, section 5.1):

        density_i = |{j : a_ij > 0}| / n_i            n_i: keys query i may attend to

    1 for softmax; 0 for a row without weight. 1 - density is the sparsity rate. (B, H, Lq)
    """
    return _of_real_rows(rows, rows.count / np.maximum(rows.visible, 1)[:, None])


def sentence_density(per_row: Floats) -> Floats:
    """The density of a head in a sentence: the mean of `density` (B, H, Lq) over the rows of the sentence. (B, H)

    What Figure 4 of Correia et al. (2019) counts, once for each head and sentence. NaN for a sentence without rows.
    """
    rows = np.count_nonzero(~np.isnan(per_row), axis=2)
    return np.where(rows > 0, np.nansum(per_row, 2) / np.maximum(rows, 1), np.nan)


def density_histogram(per_sentence: Floats) -> Ints:
    """How many sentences have a density (B, H) in [k / 20, (k + 1) / 20), k = 0, ..., 19; the last holds 1 too. (H, 20)"""
    heads = per_sentence.shape[1]
    bins = np.floor(BINS * np.nan_to_num(per_sentence) + 1e-9).astype(np.int64)  # rounding must not move 0.05 a bin down
    cells = np.minimum(bins, BINS - 1) + BINS * np.arange(heads)
    return np.bincount(cells[~np.isnan(per_sentence)], minlength=BINS * heads).reshape(heads, BINS)


def entropy(rows: LayerRows) -> Floats:
    """Shannon entropy of the shares in nats; NaN too where a row has no weight:

    H_i = - sum_j share_ij ln share_ij            (B, H, Lq)
    """
    found: Floats = -rows.per_row(rows.share * np.log(rows.share))
    return np.where(rows.count > 0, np.maximum(found, 0.0), np.nan)


def effective_keys(rows: LayerRows) -> Floats:
    """How many keys an even row of the same entropy would have: exp(H_i), from 1 to the size of the support. (B, H, Lq)"""
    return np.exp(entropy(rows))


def null_rows(rows: LayerRows) -> Bools:
    """True where a query that may attend has no weight at all, which ReLA allows: sum_j a_ij = 0. (B, H, Lq)"""
    empty: Bools = (rows.count == 0) & rows.real[:, None]
    return empty


def union_density(rows: LayerRows) -> Floats:
    """The share of the visible keys that at least one head of the layer gives weight to:

    |union over h of {j : a^h_ij > 0}| / n_i            (B, Lq), NaN for padding
    """
    size = np.bincount(rows.mixture.row, minlength=rows.batch * rows.queries).reshape(rows.batch, rows.queries)
    return np.where(rows.real, size / np.maximum(rows.visible, 1), np.nan)


def _of_real_rows(rows: LayerRows, values: Floats) -> Floats:
    return np.where(rows.real[:, None], values, np.nan)
