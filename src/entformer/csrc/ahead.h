// Rows that are read soon, fetched into the cache one line at each step of the products before them (gemm.h): they come from memory while
// these compute. Fetched all at once they would wait for each other.
#pragma once

#include <stdint.h>

namespace {

class Ahead {
 public:
  static constexpr int64_t kLine = 64;         // bytes
  static constexpr int64_t kMostLines = 1024;  // of one tensor: more would push out of the cache what is in use

  // The line to fetch, and the steps from it to the next ones.
  const char *at, *row_end;
  int64_t stride, skip;  // from row to row, and from the end of a row to the next one

  Ahead() { clear(); }
  void clear() {
    size = next = 0;
    left = 0;
    advance(0);
  }
  void add(const void* first, int64_t row_stride, int64_t row_bytes, int64_t rows) {  // strides in bytes
    const int64_t lines = (row_bytes + kLine - 1) / kLine;
    if (rows <= 0 || lines <= 0) return;
    const int64_t most = kMostLines / lines;
    queue[size++] = {(const char*)first, row_stride, lines, rows < most ? rows : most};
    if (size == 1) left = 0, advance(0);
  }
  void advance(int64_t steps) {
    if ((left -= steps) > 0) return;
    if (next == size) {  // nothing more: the same line again and again
      at = (const char*)this, row_end = at + kLine, stride = 0, skip = -kLine, left = INT64_MAX;
      return;
    }
    const Rows& rows = queue[next++];
    at = rows.first, row_end = at + rows.lines * kLine, stride = rows.stride, skip = stride - rows.lines * kLine;
    left = rows.lines * rows.count;
  }

 private:
  struct Rows {
    const char* first;
    int64_t stride, lines, count;
  } queue[5];
  int size, next;
  int64_t left;  // lines of the rows in work
};

}  // namespace
