// CUDA C on a CPU, as far as the kernels use it, in place of the header of the same name: a thread of the machine for
// each thread of a block, the blocks one after another.

#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::min;
using std::size_t;

struct dim3 {
    unsigned int x = 1, y = 1;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
struct float2 {
    float x, y;
};
struct alignas(4) __half2 {
    _Float16 x, y;
};

inline thread_local dim3 threadIdx, blockIdx;
inline std::barrier<>* block_barrier;

inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline unsigned int atomicAdd(unsigned int* address, unsigned int value) {
    return std::atomic_ref(*address).fetch_add(value);
}
inline unsigned long long atomicMax(unsigned long long* address, unsigned long long value) {
    std::atomic_ref target(*address);
    unsigned long long before = target.load();
    while (before < value && !target.compare_exchange_weak(before, value)) {
    }
    return before;
}

inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline unsigned int __float_as_uint(float value) { return std::bit_cast<unsigned int>(value); }
inline float __uint_as_float(unsigned int bits) { return std::bit_cast<float>(bits); }

// The float sum of two halves is exact enough that rounding it to half rounds once.
inline __half2 __hadd2(__half2 a, __half2 b) {
    return {static_cast<_Float16>(static_cast<float>(a.x) + static_cast<float>(b.x)),
            static_cast<_Float16>(static_cast<float>(a.y) + static_cast<float>(b.y))};
}
inline float __low2float(__half2 value) { return static_cast<float>(value.x); }
inline float __high2float(__half2 value) { return static_cast<float>(value.y); }

inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
    unsigned int result = 0;
    for (int i = 0; i < 4; ++i) result |= (bytes >> (8 * (selector >> 4 * i & 7)) & 0xff) << 8 * i;
    return result;
}

// Shared memory is full of NaN when a block begins, as far as halves and floats go.
template <class Kernel>
void run_grid(dim3 grid, unsigned int threads, void* shared, size_t shared_bytes, Kernel kernel) {
    std::barrier<> barrier(threads);
    block_barrier = &barrier;
    std::vector<std::thread> block;
    for (unsigned int thread = 0; thread < threads; ++thread)
        block.emplace_back([=, &barrier] {
            threadIdx.x = thread;
            for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
                for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                    if (thread == 0) std::memset(shared, 0xff, shared_bytes);
                    barrier.arrive_and_wait();
                    kernel();
                    barrier.arrive_and_wait();
                }
        });
    for (std::thread& each : block) each.join();
}
