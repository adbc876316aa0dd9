// See linear_formats.h.
#include "linear.h"

namespace polybatch {

template void run_linear<Int8Format<float, 3>>(const PolybatchLinear&, const int64_t*, int64_t);
template void run_linear<Int8Format<BFloat16, 2>>(const PolybatchLinear&, const int64_t*, int64_t);

}  // namespace polybatch
