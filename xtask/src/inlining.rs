//! `cargo xtask inlining`: proves that no compiled kernel calls an instruction's function instead of holding the instruction.
//!
//! The functions of `core::arch` are inlined only into code with the same target features. A closure does not inherit them, and
//! whether the optimiser mends that depends on everything round it: the results stay right, and a kernel takes twice the time.
//! So the assembly of the release library is searched for such calls.

use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;

const LIBRARY: &str = "zllm_kernels";
/// Part of the mangled name of each function of `core::arch`.
const INTRINSIC: &str = "9core_arch";
/// An instruction that the library must hold, or something else was searched.
const KNOWN: &str = "vpdpbusd";

/// Compiles the library to assembly and fails where it calls an intrinsic.
pub(crate) fn run() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: there are vector kernels for x86-64 only");
        return Ok(());
    }
    let texts = assembly()?;
    let known: usize = texts.iter().map(|text| text.matches(KNOWN).count()).sum();
    let faults: Vec<_> = texts.iter().flat_map(|text| calls(text)).collect();
    if known == 0 {
        bail!("no {KNOWN} in the assembly of {LIBRARY}: are its kernels built otherwise now?");
    }
    for (function, called) in &faults {
        eprintln!("{function} calls {called}");
    }
    if !faults.is_empty() {
        bail!(
            "{} calls of intrinsics, which should have been inlined; names: `c++filt` or `rustfilt`",
            faults.len()
        );
    }
    println!("inlining: {LIBRARY} calls no intrinsic and holds {known} {KNOWN}");
    Ok(())
}

/// The library's assembly, a text for each unit of code generation.
fn assembly() -> Result<Vec<String>> {
    let build = ["rustc", "--release", "--locked", "--package", "zllm-kernels", "--lib"];
    let messages = ["--message-format", "json-render-diagnostics", "--", "--emit", "asm"];
    let printed = process::printed(process::cargo().args(build).args(messages))?;
    // target/release/deps/libNAME-HASH.rmeta, beside which lie NAME-HASH.UNIT.s
    let metadata = printed
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == LIBRARY)
        .find_map(|message| {
            let files = message["filenames"].as_array()?;
            files.iter().filter_map(Value::as_str).find(|file| file.ends_with(".rmeta")).map(str::to_owned)
        })
        .with_context(|| format!("cargo names no metadata of {LIBRARY}"))?;
    let path = std::path::Path::new(&metadata);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.strip_prefix("lib"));
    let (folder, stem) = path.parent().zip(stem).with_context(|| format!("{metadata} is no library"))?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(stem) && name.ends_with(".s") {
            texts.push(fs::read_to_string(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(texts)
}

/// The functions that call an intrinsic, and which.
fn calls(assembly: &str) -> Vec<(&str, &str)> {
    let mut function = "";
    let mut found = Vec::new();
    for line in assembly.lines() {
        if !line.starts_with(['\t', ' ', '.']) {
            function = line.strip_suffix(':').unwrap_or(function);
        }
        let mut words = line.split_ascii_whitespace();
        let jumps = words.next().is_some_and(|word| word.starts_with("call") || word.starts_with("jmp"));
        if let Some(called) = words.next().filter(|called| jumps && called.contains(INTRINSIC)) {
            found.push((function, called));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_an_intrinsic_is_found_and_its_name_in_other_places_is_not() {
        let text = "\
_RNv6kernel3dot:
\tvpdpbusd\t%zmm1, %zmm2, %zmm3
\tcallq\t_RNvNtNtNtCs_4core9core_arch3x867avx512f15__mm512_set1_ps
\tcallq\t_RNv6kernel5other
_RNv6kernel4tail:
.Ltmp1:
\tjmp\t*_RNvNtNtNtCs_4core9core_arch3x863avx13__mm256_add_ps@GOTPCREL(%rip)
\t.asciz\t\"core::core_arch::x86::__m512i 9core_arch\"
";
        let found = calls(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].0, "_RNv6kernel3dot");
        assert_eq!(found[1].0, "_RNv6kernel4tail");
        assert!(found[1].1.contains("_mm256_add_ps"));
    }
}
