//! The machine's roofs as one JSON object, for `cargo xtask bench`: `roofs [THREADS]` prints
//! `{"memory_gb_per_s": .., "vpdpbusd_gmac_per_s": .. or null}`.

mod measure;

use zllm_kernels::cpu::pool::Pool;

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a number of threads"));
    let pool = Pool::new(threads);
    let integer = measure::vpdpbusd_gmac_per_s(&pool).map_or("null".to_owned(), |rate| format!("{rate:.1}"));
    let memory = measure::memory_gb_per_s(&pool);
    println!("{{\"memory_gb_per_s\":{memory:.2},\"vpdpbusd_gmac_per_s\":{integer}}}");
}
