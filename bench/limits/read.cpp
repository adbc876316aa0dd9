// Reads memory as fast as the machine allows: every thread its own part, as several streams side by side, because the
// prefetchers of a core follow one stream per page and a single one may not keep enough lines in flight.
#include <cstdint>

namespace {

typedef std::uint64_t Line __attribute__((vector_size(64)));
constexpr std::int64_t kUnroll = 4;  // lines of each stream per iteration

template <int streams>
std::uint64_t read_part(const Line* part, std::int64_t lines) {
    const std::int64_t stride = lines / streams;
    Line sums[streams][kUnroll] = {};
    for (std::int64_t at = 0; at + kUnroll <= stride; at += kUnroll) {
        for (int stream = 0; stream < streams; ++stream) {
            for (std::int64_t i = 0; i < kUnroll; ++i) sums[stream][i] += part[stream * stride + at + i];
        }
    }
    Line total = {};
    for (int stream = 0; stream < streams; ++stream) {
        for (std::int64_t i = 0; i < kUnroll; ++i) total += sums[stream][i];
    }
    std::uint64_t sum = 0;
    for (int i = 0; i < 8; ++i) sum += total[i];
    return sum;
}

std::uint64_t read_streams(const Line* part, std::int64_t lines, int streams) {
    switch (streams) {
        case 1: return read_part<1>(part, lines);
        case 2: return read_part<2>(part, lines);
        case 4: return read_part<4>(part, lines);
        default: return read_part<6>(part, lines);
    }
}

}  // namespace

// `data` is aligned to 64 bytes; the sum keeps the compiler from leaving the reads out.
extern "C" std::uint64_t read_all(const void* data, std::int64_t bytes, int threads, int streams) {
    const Line* lines = static_cast<const Line*>(data);
    const std::int64_t per_thread = bytes / 64 / threads;
    std::uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : sum)
    for (int thread = 0; thread < threads; ++thread) {
        sum += read_streams(lines + thread * per_thread, per_thread, streams);
    }
    return sum;
}
