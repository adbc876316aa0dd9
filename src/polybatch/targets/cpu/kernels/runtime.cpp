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

void polybatch_release_threads() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

const char* polybatch_isa() { return polybatch::kIsaName; }

int polybatch_has_gates() { return polybatch::kHasGates; }

}  // extern "C"
