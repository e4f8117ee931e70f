"""How sparse attention weights are: a number per query, (B, H, Lq) or (B, Lq), NaN for padding."""

import numpy as np

from entformer.analysis.rows import Floats, Ints, LayerRows, once_per_batch

BINS = 20
KEY_BINS = 20  # of queries by the keys they see: powers of two up to a million


@once_per_batch
def density(rows: LayerRows) -> Floats:
    """Computes the fraction of the visible keys with nonzero weight (Correia et al. 2019, section 5.1):

        density_i = |{j : a_ij > 0}| / n_i            n_i: keys query i may attend to

    1 for softmax; 0 for a query without nonzero weight. 1 - density is the sparsity. (B, H, Lq)
    """
    return np.where(rows.real[:, None], rows.count / np.maximum(rows.visible, 1)[:, None], np.nan)


def sentence_density(per_row: Floats) -> Floats:
    """Computes the density of a head in a sentence: the mean of `density` (B, H, Lq) over the queries. (B, H)

    What Figure 4 of Correia et al. (2019) counts, once for each head and sentence. NaN for a sentence without queries.
    """
    rows = np.count_nonzero(~np.isnan(per_row), axis=2)
    return np.where(rows > 0, np.nansum(per_row, 2) / np.maximum(rows, 1), np.nan)


def density_histogram(per_sentence: Floats) -> Ints:
    """Counts the sentences with a density (B, H) in [k / 20, (k + 1) / 20), k = 0, ..., 19; the last holds 1 too. (H, 20)"""
    heads = per_sentence.shape[1]
    bins = np.floor(BINS * np.nan_to_num(per_sentence) + 1e-9).astype(np.int64)  # rounding must not move 0.05 a bin down
    cells = np.minimum(bins, BINS - 1) + BINS * np.arange(heads)
    return np.bincount(cells[~np.isnan(per_sentence)], minlength=BINS * heads).reshape(heads, BINS)


def density_by_keys(rows: LayerRows) -> tuple[Floats, Ints]:
    """Sums `density` over the queries that see 2^k to 2^(k + 1) - 1 keys, k = 0, ..., 19, and counts them: (H, 20), (20,).

    A query of causal attention at position i sees i + 1 keys.
    """
    bins = np.minimum(np.log2(np.maximum(rows.visible, 1)).astype(np.int64), KEY_BINS - 1)  # (B, Lq)
    per_row = density(rows)
    real = rows.real.ravel()
    sums = [np.bincount(bins.ravel()[real], per_row[:, head].ravel()[real], KEY_BINS) for head in range(rows.heads)]
    return np.array(sums), np.bincount(bins.ravel()[real], minlength=KEY_BINS)


def support(rows: LayerRows) -> Floats:
    """Counts the keys with nonzero weight, |{j : a_ij > 0}|. (B, H, Lq)"""
    return np.where(rows.real[:, None], rows.count, np.nan)


@once_per_batch
def entropy(rows: LayerRows) -> Floats:
    """Computes the Shannon entropy of normalized weights in nats; NaN too where all weights are 0:

    H_i = - sum_j p_ij ln p_ij            (B, H, Lq)
    """
    found: Floats = -rows.per_row(rows.normalized * np.log(rows.normalized))
    return np.where(rows.count > 0, np.maximum(found, 0.0), np.nan)


def normalized_entropy(rows: LayerRows) -> Floats:
    """Computes H_i / ln n_i, 1 for equal weights on all visible keys; NaN too where a query sees one key only. (B, H, Lq)"""
    most = np.log(np.maximum(rows.visible, 2))[:, None]
    return np.where((rows.visible > 1)[:, None], entropy(rows) / most, np.nan)


def null_rate(rows: LayerRows) -> Floats:
    """Returns 1 where all weights of a query are 0, which ReLA allows (Zhang et al. 2021, section 4.3), else 0. (B, H, Lq)"""
    return np.where(rows.real[:, None], rows.count == 0, np.nan)


def union_density(rows: LayerRows) -> Floats:
    """Computes the fraction of the visible keys to which at least one head gives a nonzero weight:

    |union over h of {j : a^h_ij > 0}| / n_i            (B, Lq)
    """
    size = np.bincount(rows.mixture.row, minlength=rows.batch * rows.queries).reshape(rows.batch, rows.queries)
    return np.where(rows.real, size / np.maximum(rows.visible, 1), np.nan)
