// Definitions of what inline code of newer C++ libraries calls, so that the library loads on systems older than the compiler's.
//
// Headers refer to these names, so the kernels cannot avoid them by not using them. kernels.cpp selects older versions of exp and log.
#include <sstream>

#if defined(__GLIBC__)
// Read by std::shared_ptr, which counts with plain instead of atomic instructions while it is not 0. Hidden by -fvisibility.
char __libc_single_threaded = 0;  // glibc 2.32
#endif

#if defined(__GLIBCXX__)
template std::basic_ostringstream<char>::basic_ostringstream();  // libstdc++ of gcc 9
template std::basic_stringstream<char>::basic_stringstream();
#endif
