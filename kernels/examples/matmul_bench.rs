//! How near the packed products are to the machine: GB/s of weights for one row, GMAC/s for many, beside the roofs of memory
//! and of `vpdpbusd` measured in the same run. Compare inside a table only: on a shared machine the roofs themselves move.
//!
//! `cargo run --release -p zllm-kernels --example matmul_bench [-- THREADS [FORMAT...]]`

#![allow(clippy::disallowed_methods, reason = "a benchmark is what the clock is for")]

#[path = "roofs/measure.rs"]
mod roofs;

use std::time::Instant;

use self::roofs::{FROM_MEMORY_BYTES, best_seconds, memory_gb_per_s, vpdpbusd_gmac_per_s};
use zllm_kernels::{
    blocks::BlockFormat,
    cpu::{
        isa::Isa,
        matmul::{Finish, Input, PackedWeight, RowsScratch, Term, multiply},
        pool::Pool,
    },
};

const FEW_ROWS: usize = 8;
const MANY_ROWS: usize = 512;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(2, |n| n.parse().expect("a number of threads"));
    let wanted: Vec<_> = args.collect();
    let pool = Pool::new(threads);
    println!("{threads} threads; {}", roofs(&pool));
    println!(
        "{:>6} {:>10} {:>12} {:>10} {:>13} {:>13} {:>14}",
        "format", "isa", "K x N", "pack GB/s", "1 row GB/s", "8 rows GB/s", "512 rows GMAC/s"
    );
    for format in BlockFormat::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == format.name()) {
            continue;
        }
        let (cols, rows) = if format.block_len() == 256 { (4864, 896) } else { (896, 4864) };
        // One has no kernels of its own but for BF16.
        let is_wanted =
            |isa: &Isa| *isa != Isa::Scalar && (*isa != Isa::Avx512Bf16 || format == BlockFormat::BF16);
        for isa in Isa::available().into_iter().filter(is_wanted) {
            let [pack, one, few, many] = measure(&pool, isa, format, rows, cols);
            println!(
                "{format:>6} {:>10} {:>12} {pack:>10.1} {one:>13.1} {few:>13.1} {many:>14.0}",
                isa.name(),
                format!("{cols}x{rows}"),
            );
        }
    }
    println!("afterwards {}", roofs(&pool));
}

fn roofs(pool: &Pool) -> String {
    let integer = vpdpbusd_gmac_per_s(pool).map(|rate| format!("{rate:.0} GMAC/s"));
    let integer = integer.unwrap_or("not on this machine".into());
    format!("memory read {:.1} GB/s; vpdpbusd {integer}", memory_gb_per_s(pool))
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
    let pack_all = || (0..copies).map(|_| pack(&file)).collect::<Vec<_>>();
    // Once before: where the system has to find new memory, that takes longer than the packing.
    drop(pack_all());
    let start = Instant::now();
    let weights = pack_all();
    let pack_rate = (copies * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;

    let input: Vec<f32> = (0..MANY_ROWS * cols).map(|i| ((i * 7919) % 251) as f32 - 125.0).collect();
    let mut output = vec![0.0; MANY_ROWS * rows];
    let mut scratch = RowsScratch::new();
    let mut run = |weight, m: usize| {
        let term = Term { weight, rows: 0..m, finish: Finish::NONE, output: &mut output[..m * rows] };
        multiply(pool, isa, Input::Rows(&input[..m * cols]), cols, [term], &mut scratch);
    };
    let [one, few] = [1, FEW_ROWS].map(|m| {
        let seconds = best_seconds(|| weights.iter().for_each(|w| run(w, m)));
        (copies * bytes) as f64 / seconds / 1e9
    });
    let many = best_seconds(|| run(&weights[0], MANY_ROWS));
    [pack_rate, one, few, (MANY_ROWS * rows * cols) as f64 / many / 1e9]
}
