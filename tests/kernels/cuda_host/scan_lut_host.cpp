// `scan_lut.cu` as a shared library for the CPU. -I names this folder and the one of the kernel.

#include "scan_lut.cu"

__half2 table[CODES * WORDS];

extern "C" void run_scan_lut(unsigned int pairs, unsigned int chunks, const void* tables, const void* codes,
                             const void* bitmaps, const int* filter_of, const unsigned long long* bounds,
                             unsigned long long* keys, unsigned int* counts, unsigned int queries, unsigned int rows,
                             unsigned int tile_stride, unsigned int chunk_tiles, unsigned int capacity) {
    run_grid({pairs, chunks}, THREADS, table, sizeof table, [=] {
        scan_lut(static_cast<const uint4*>(tables), static_cast<const uint4*>(codes),
                 static_cast<const uint4*>(bitmaps), filter_of, bounds, keys, counts, queries, rows, tile_stride,
                 chunk_tiles, capacity);
    });
}
