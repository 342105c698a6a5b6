//! Where tests find the real models: `$ZLLM_MODELS_DIR`, else `$XDG_CACHE_HOME/zllm/models`, else
//! `~/.cache/zllm/models`. `cargo xtask models` puts them there.

use std::{env, path::PathBuf};

/// The file of the real model `name`. A model that is not there fails the test, and says how to get it.
pub(crate) fn path(name: &str) -> PathBuf {
    let folder = |key: &str, below: &str| env::var_os(key).map(|value| PathBuf::from(value).join(below));
    let folder = folder("ZLLM_MODELS_DIR", "")
        .or_else(|| folder("XDG_CACHE_HOME", "zllm/models"))
        .or_else(|| folder("HOME", ".cache/zllm/models"))
        .expect("one of ZLLM_MODELS_DIR, XDG_CACHE_HOME and HOME is set");
    let path = folder.join(name).with_added_extension("gguf");
    assert!(path.is_file(), "{} is missing; `cargo xtask models` fetches it", path.display());
    path
}
