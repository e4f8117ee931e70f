"""The names of the `entmax` package: `import entformer.compat as entmax` replaces `import entmax`.

Its submodules `activations`, `root_finding` and `losses` are here too, with the classes named `*Function`. Arguments that tune
the package's algorithms (`k`, `n_iter`, `ensure_sum_one`) are accepted and have no effect. `adasplash` is the function of the
package of that name.
"""

from entformer.compat import activations, attention, losses, root_finding
from entformer.compat.activations import *
from entformer.compat.attention import *
from entformer.compat.losses import *
from entformer.compat.root_finding import *

__all__ = [*activations.__all__, *attention.__all__, *losses.__all__, *root_finding.__all__]
