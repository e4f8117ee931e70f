"""From a map of blocks, one byte each, to lists of the nonzero ones."""

import triton
import triton.language as tl


@triton.jit
def list_blocks(blocks, lists, counts, rows, columns, row_stride, column_stride, CHUNK: tl.constexpr):
    """Writes the indices of the nonzero bytes of one row of a map (heads, rows, columns), and their number."""
    line = tl.program_id(0).to(tl.int64)
    base = blocks + line // rows * rows * columns + line % rows * row_stride
    found = 0
    for start in range(0, columns, CHUNK):
        index = start + tl.arange(0, CHUNK)
        taken = (tl.load(base + index.to(tl.int64) * column_stride, mask=index < columns, other=0) != 0).to(tl.int32)
        position = found + tl.cumsum(taken, 0) - taken
        tl.store(lists + line * columns + position, index.to(lists.dtype.element_ty), mask=taken != 0)
        found += tl.sum(taken, 0)
    tl.store(counts + line, found)
