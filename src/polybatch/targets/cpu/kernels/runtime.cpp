// The entry points that concern the whole library.
#include <omp.h>

#include "api.h"
#include "simd.h"

extern "C" {

int polybatch_set_num_threads(int threads) {
  const int previous = omp_get_max_threads();
  omp_set_num_threads(threads);
  return previous;
}

const char* polybatch_isa() { return polybatch::kIsaName; }

}  // extern "C"
