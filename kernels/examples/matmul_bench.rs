//! How near the packed products are to the machine: GB/s of weights for one row, GMAC/s for many, beside the roofs of memory
//! and of `vpdpbusd` measured in the same run. Compare inside a table only: on a shared machine the roofs themselves move.
//!
//! `cargo run --release -p zllm-kernels --example matmul_bench [-- THREADS [FORMAT...]]`

#![allow(clippy::disallowed_methods, reason = "a benchmark is what the clock is for")]

use std::time::Instant;
use zllm_kernels::{
    blocks::BlockFormat,
    cpu::{
        isa::Isa,
        matmul::{PackedWeight, RowsScratch, Term, multiply},
        pool::Pool,
    },
};

/// Weights that no cache holds.
const FROM_MEMORY_BYTES: usize = 150 << 20;
const FEW_ROWS: usize = 8;
const MANY_ROWS: usize = 512;
const REPEATS: usize = 5;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(2, |n| n.parse().expect("a number of threads"));
    let wanted: Vec<_> = args.collect();
    let pool = Pool::new(threads);
    let memory = read_roof(&pool);
    println!("{threads} threads; memory read {memory:.1} GB/s; vpdpbusd {}", vnni_roof(&pool));
    println!(
        "{:>6} {:>7} {:>12} {:>10} {:>13} {:>13} {:>14}",
        "format", "isa", "K x N", "pack GB/s", "1 row GB/s", "8 rows GB/s", "512 rows GMAC/s"
    );
    for format in BlockFormat::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == format.name()) {
            continue;
        }
        let (cols, rows) = if format.block_len() == 256 { (4864, 896) } else { (896, 4864) };
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar) {
            let [pack, one, few, many] = measure(&pool, isa, format, rows, cols);
            println!(
                "{format:>6} {:>7} {:>12} {pack:>10.1} {one:>13.1} {few:>13.1} {many:>14.0}",
                isa.name(),
                format!("{cols}x{rows}"),
            );
        }
    }
    println!("memory read afterwards {:.1} GB/s; vpdpbusd {}", read_roof(&pool), vnni_roof(&pool));
}

fn measure(pool: &Pool, isa: Isa, format: BlockFormat, rows: usize, cols: usize) -> [f64; 4] {
    let bytes = format.row_bytes(cols).expect("whole blocks") * rows;
    let copies = FROM_MEMORY_BYTES.div_ceil(bytes);
    let mut noise = 1u64;
    let file: Vec<u8> = (0..bytes)
        .map(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            // No exponent of all ones: floats and scales stay finite.
            (noise >> 40) as u8 & 0xbb
        })
        .collect();
    let pack = |file: &[u8]| PackedWeight::pack(pool, isa, format, rows, cols, file).expect("shapes fit");
    let start = Instant::now();
    let weights: Vec<_> = (0..copies).map(|_| pack(&file)).collect();
    let pack_rate = (copies * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;

    let input: Vec<f32> = (0..MANY_ROWS * cols).map(|i| ((i * 7919) % 251) as f32 - 125.0).collect();
    let mut output = vec![0.0; MANY_ROWS * rows];
    let mut scratch = RowsScratch::new();
    let mut run = |weight, m: usize| {
        let term = Term { weight, rows: 0..m, output: &mut output[..m * rows] };
        multiply(pool, isa, &input[..m * cols], cols, [term], &mut scratch);
    };
    let [one, few] = [1, FEW_ROWS].map(|m| {
        let seconds = best_seconds(|| weights.iter().for_each(|w| run(w, m)));
        (copies * bytes) as f64 / seconds / 1e9
    });
    let many = best_seconds(|| run(&weights[0], MANY_ROWS));
    [pack_rate, one, few, (MANY_ROWS * rows * cols) as f64 / many / 1e9]
}

fn best_seconds(mut run: impl FnMut()) -> f64 {
    let mut timed = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(|_| timed()).fold(f64::INFINITY, f64::min)
}

/// GB/s at which all threads together read memory in order.
fn read_roof(pool: &Pool) -> f64 {
    let words = vec![1u64; FROM_MEMORY_BYTES / 8];
    let seconds = best_seconds(|| {
        pool.split_in_order(words.len() / 8192, 4, &|range, _| {
            let part = &words[range.start * 8192..range.end * 8192];
            let mut sums = [0u64; 32];
            for chunk in part.as_chunks::<32>().0 {
                sums.iter_mut().zip(chunk).for_each(|(s, w)| *s = s.wrapping_add(*w));
            }
            std::hint::black_box(sums);
        });
    });
    FROM_MEMORY_BYTES as f64 / seconds / 1e9
}

/// GMAC/s of 512-bit `vpdpbusd` on registers alone, as text.
fn vnni_roof(pool: &Pool) -> String {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx512.is_supported() {
        const ROUNDS: usize = 4_000_000;
        const MACS_A_ROUND: usize = 12 * 64;
        // SAFETY: the machine has AVX-512 VNNI.
        let seconds = best_seconds(|| pool.run(&|_| unsafe { vnni_rounds(ROUNDS) }));
        return format!("{:.0} GMAC/s", (pool.threads() * ROUNDS * MACS_A_ROUND) as f64 / seconds / 1e9);
    }
    let _ = pool;
    "not on this machine".into()
}

/// Twelve independent sums, enough to hide the instruction's latency.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni_rounds(rounds: usize) {
    // SAFETY: registers alone, all named as clobbered.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpdpbusd zmm0, zmm14, zmm15", "vpdpbusd zmm1, zmm14, zmm15", "vpdpbusd zmm2, zmm14, zmm15",
            "vpdpbusd zmm3, zmm14, zmm15", "vpdpbusd zmm4, zmm14, zmm15", "vpdpbusd zmm5, zmm14, zmm15",
            "vpdpbusd zmm6, zmm14, zmm15", "vpdpbusd zmm7, zmm14, zmm15", "vpdpbusd zmm8, zmm14, zmm15",
            "vpdpbusd zmm9, zmm14, zmm15", "vpdpbusd zmm10, zmm14, zmm15", "vpdpbusd zmm11, zmm14, zmm15",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm14") _, out("zmm15") _,
            options(nomem, nostack),
        );
    }
}
