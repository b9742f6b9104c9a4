// ADC scan: the best rows of a table of codes for many queries, by sums of look-ups (Jégou et al., "Product
// Quantization for Nearest Neighbor Search", 2011). What passes a query's filter and beats its bound goes to the
// query's buffer; no array the size of the table is ever written. `scan_lut.py` packs the inputs and chooses the bounds.
//
// Two queries share a block and one table in shared memory: a half2 word holds the entry of both, [256 codes][64 words]
// = 64 KB. Look-ups are what limits the scan, so each is one PRMT (the address), one LDS and one HADD2, free of bank
// conflicts: the word of sub-space 4g + s is 16s + g, and in one instruction the 16 lanes of a half-warp read 16
// different g of the same s, the other half-warp those of s ^ 1, which lie in the other 16 banks.
//
// Codes come in tiles of 128 rows, one a warp and turn: two groups of 64 rows, one a half-warp, each stored as
// [t][r] chunks of 16 bytes (t, r in 0 … 15). Chunk (t, r) belongs to lane r; its word j holds the sub-spaces
// 4g … 4g + 3 of row 16j + r, with g = t ^ r. So the lane order is also the order in memory, and loads are whole lines.
//
// THREADS and BLOCKS_PER_SM come from `scan_lut.py`, for they differ between architectures.

#include <cuda_fp16.h>

constexpr unsigned int CODES = 256, WORDS = 64, WARPS = THREADS / 32;
constexpr unsigned int CHUNKS = 256;       // of 16 bytes, in a group of 64 rows
constexpr int EVERY_ROW = -1, NO_ROW = -2; // in place of a filter's number

extern __shared__ __align__(16) __half2 table[];

// Floats as unsigned integers of the same order.
__device__ __forceinline__ unsigned int ordered(float score) {
    const unsigned int bits = __float_as_uint(score);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unordered(unsigned int bits) {
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

// The 128 bits of a tile: which of its rows pass.
__device__ __forceinline__ uint4 passing(const uint4* bitmaps, int filter, unsigned int tiles, unsigned int tile) {
    if (filter == EVERY_ROW) return make_uint4(~0u, ~0u, ~0u, ~0u);
    if (filter == NO_ROW) return make_uint4(0, 0, 0, 0);
    return bitmaps[(size_t)filter * tiles + tile];
}

// Which of a lane's rows pass: bit j for row 16j + r of the half-warp's group.
__device__ __forceinline__ unsigned int passing_rows(uint4 bits, unsigned int half, unsigned int r) {
    const unsigned int early = (half ? bits.z : bits.x) >> r, late = (half ? bits.w : bits.y) >> r;
    return (early & 1) | (early >> 15 & 2) | (late & 1) << 2 | (late >> 13 & 8);
}

__device__ __forceinline__ bool any(uint4 bits) { return (bits.x | bits.y | bits.z | bits.w) != 0; }

__device__ __forceinline__ __half2 entry(unsigned int byte_offset) {
    return *reinterpret_cast<const __half2*>(reinterpret_cast<const char*>(table) + byte_offset);
}

// Larger keys are better: the higher score, then the lower row. A NaN is not >= anything and never gets in.
__device__ __forceinline__ void offer(float score, unsigned int row, float least, const unsigned long long* bound,
                                      unsigned long long* keys, unsigned int* count, unsigned int capacity) {
    if (!(score >= least)) return;
    const unsigned long long key = (unsigned long long)ordered(score) << 32 | ~row;
    if (key <= *bound) return; // read again: few come here, and registers are short
    // The counter counts past the end, so that an overflow shows. A slot keeps its best key then, so most of the best
    // keys of all are still there to give a bound for the next scan.
    atomicMax(keys + atomicAdd(count, 1u) % capacity, key);
}

// Grid: (query pairs, chunks of `chunk_tiles` tiles); pairs vary fastest, so that those running share codes in the L2.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) scan_lut(
    const uint4* __restrict__ tables,              // [pairs][CODES][WORDS] half2
    const uint4* __restrict__ codes,               // [tiles][2][16][16] chunks
    const uint4* __restrict__ bitmaps,             // [filters][tiles], bit i of a tile for its row i
    const int* __restrict__ filter_of,             // [queries]: which bitmap, EVERY_ROW or NO_ROW
    const unsigned long long* __restrict__ bounds, // [queries]: keys above it are kept
    unsigned long long* __restrict__ keys,         // [queries][capacity], zero at the start
    unsigned int* __restrict__ counts,             // [queries], zero at the start
    unsigned int queries, unsigned int rows,
    unsigned int tile_stride,                      // every so many-th tile is scanned
    unsigned int chunk_tiles, unsigned int capacity) {
    const unsigned int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / 16, r = lane % 16;
    const unsigned int tiles = (rows + 127) / 128;
    const unsigned int scanned = (tiles + tile_stride - 1) / tile_stride;
    const unsigned int first = blockIdx.y * chunk_tiles, last = min(first + chunk_tiles, scanned);

    const unsigned int query_a = 2 * blockIdx.x, query_b = query_a + 1;
    const bool has_b = query_b < queries;
    const int filter_a = filter_of[query_a], filter_b = has_b ? filter_of[query_b] : NO_ROW;
    if (filter_a == NO_ROW && filter_b == NO_ROW) return;

    for (unsigned int i = threadIdx.x; i < CODES * WORDS / 4; i += THREADS)
        reinterpret_cast<uint4*>(table)[i] = tables[(size_t)blockIdx.x * (CODES * WORDS / 4) + i];
    __syncthreads();

    const float least_a = unordered(bounds[query_a] >> 32), least_b = has_b ? unordered(bounds[query_b] >> 32) : 0;

    // An address is the code in its second byte, so times the 256 bytes of a table row, and 4g + 64s in its first. The
    // s of a look-up is `place` ^ half: bit 1 of it is known to the compiler and goes into the load instruction.
    unsigned int take_code[4];
#pragma unroll
    for (unsigned int place = 0; place < 4; ++place) take_code[place] = 0x5504 | (place ^ half) << 4;

    for (unsigned int i = first + warp; i < last; i += WARPS) {
        const unsigned int tile = i * tile_stride;
        const uint4 pass_a = passing(bitmaps, filter_a, tiles, tile), pass_b = passing(bitmaps, filter_b, tiles, tile);
        if (!any(pass_a) && !any(pass_b)) continue;
        const unsigned int pass = passing_rows(pass_a, half, r) | passing_rows(pass_b, half, r) << 4;

        const uint4* group = codes + ((size_t)tile * 2 + half) * CHUNKS + r;
        float2 sums[4] = {};
        // 16 sub-spaces add up in fp16, the four parts in fp32. Unrolled whole, the compiler keeps all 16 values of
        // `low` in registers and spills.
#pragma unroll 2
        for (unsigned int part = 0; part < 4; ++part) {
            __half2 partial[4];
#pragma unroll
            for (unsigned int step = 0; step < 4; ++step) {
                const unsigned int t = 4 * part + step, low = (t ^ r) * 4 + half * 64;
                const uint4 chunk = group[t * 16];
                const unsigned int row_codes[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
                for (unsigned int place = 0; place < 4; ++place) {
#pragma unroll
                    for (unsigned int j = 0; j < 4; ++j) {
                        const unsigned int address = __byte_perm(row_codes[j], low ^ (place & 1) * 64, take_code[place]);
                        const __half2 value = entry(address + (place & 2) * 64);
                        partial[j] = step == 0 && place == 0 ? value : __hadd2(partial[j], value);
                    }
                }
            }
#pragma unroll
            for (unsigned int j = 0; j < 4; ++j) {
                sums[j].x += __low2float(partial[j]);
                sums[j].y += __high2float(partial[j]);
            }
        }

#pragma unroll
        for (unsigned int j = 0; j < 4; ++j) {
            const unsigned int row = tile * 128 + half * 64 + j * 16 + r;
            if (row >= rows) continue;
            if (pass >> j & 1)
                offer(sums[j].x, row, least_a, bounds + query_a, keys + (size_t)query_a * capacity, counts + query_a,
                      capacity);
            if (pass >> j & 16)
                offer(sums[j].y, row, least_b, bounds + query_b, keys + (size_t)query_b * capacity, counts + query_b,
                      capacity);
        }
    }
}
