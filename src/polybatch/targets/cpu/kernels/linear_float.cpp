// See linear_formats.h.
#include "linear.h"

namespace polybatch {

template void run_linear<FloatFormat<DotF32>>(const PolybatchLinear&, const int64_t*, int64_t);
template void run_linear<FloatFormat<DotF32Narrow>>(const PolybatchLinear&, const int64_t*, int64_t);
template void run_linear<FloatFormat<DotBF16>>(const PolybatchLinear&, const int64_t*, int64_t);

}  // namespace polybatch
