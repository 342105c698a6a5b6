//! Where the daemon listens and where models lie, unless told otherwise. Daemon and clients ask here, so they agree.

use std::{env, ffi::OsString, path::Path, path::PathBuf};

/// Names the socket to listen on and to connect to.
pub const SOCKET_ENV: &str = "ZLLM_SOCKET";
/// Names the folder of models.
pub const MODELS_DIR_ENV: &str = "ZLLM_MODELS_DIR";
/// The socket of a system-wide daemon.
pub const SYSTEM_SOCKET: &str = "/run/zllm/zllmd.sock";

/// Where a daemon listens: `$ZLLM_SOCKET`, else `$XDG_RUNTIME_DIR/zllm/zllmd.sock`, else `/run/zllm/zllmd.sock` if
/// it exists, else `/tmp/zllm-UID/zllmd.sock`.
pub fn default_socket_path() -> PathBuf {
    socket_path(&process_env, nix::unistd::getuid().as_raw(), &Path::exists)
}

/// Where a client finds a daemon: as [`default_socket_path`], but a user who has a runtime folder and no daemon of
/// their own in it gets the system's if there is one.
pub fn find_socket_path() -> PathBuf {
    let own = default_socket_path();
    let system = Path::new(SYSTEM_SOCKET);
    if process_env(SOCKET_ENV).is_none() && !own.exists() && system.exists() { system.into() } else { own }
}

/// Where models lie: `$ZLLM_MODELS_DIR`, else `$XDG_DATA_HOME/zllm/models`, else `$HOME/.local/share/zllm/models`.
/// `None` when none of the three is set.
pub fn default_models_dir() -> Option<PathBuf> {
    models_dir(&process_env)
}

fn process_env(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn socket_path(env: &dyn Fn(&str) -> Option<OsString>, uid: u32, exists: &dyn Fn(&Path) -> bool) -> PathBuf {
    if let Some(path) = env(SOCKET_ENV) {
        return path.into();
    }
    if let Some(dir) = env("XDG_RUNTIME_DIR") {
        return Path::new(&dir).join("zllm/zllmd.sock");
    }
    if exists(Path::new(SYSTEM_SOCKET)) {
        return SYSTEM_SOCKET.into();
    }
    format!("/tmp/zllm-{uid}/zllmd.sock").into()
}

fn models_dir(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(dir) = env(MODELS_DIR_ENV) {
        return Some(dir.into());
    }
    if let Some(data) = env("XDG_DATA_HOME") {
        return Some(Path::new(&data).join("zllm/models"));
    }
    env("HOME").map(|home| Path::new(&home).join(".local/share/zllm/models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env_of(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[test]
    fn socket_order() {
        let all = env_of(&[("ZLLM_SOCKET", "/a/s"), ("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(socket_path(&all, 7, &|_| true), Path::new("/a/s"));
        let runtime = env_of(&[("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(socket_path(&runtime, 7, &|_| true), Path::new("/run/user/7/zllm/zllmd.sock"));
        assert_eq!(socket_path(&env_of(&[]), 7, &|_| true), Path::new(SYSTEM_SOCKET));
        assert_eq!(socket_path(&env_of(&[]), 7, &|_| false), Path::new("/tmp/zllm-7/zllmd.sock"));
    }

    #[test]
    fn models_order() {
        let all = env_of(&[("ZLLM_MODELS_DIR", "/m"), ("XDG_DATA_HOME", "/d"), ("HOME", "/h")]);
        assert_eq!(models_dir(&all).unwrap(), Path::new("/m"));
        let data = env_of(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]);
        assert_eq!(models_dir(&data).unwrap(), Path::new("/d/zllm/models"));
        assert_eq!(models_dir(&env_of(&[("HOME", "/h")])).unwrap(), Path::new("/h/.local/share/zllm/models"));
        assert_eq!(models_dir(&env_of(&[])), None);
    }
}
