//! `[[devices]]`: what computes; and `devices` and `split` of a model: which of them has which part of it.

use super::cores::allowed_processors;
use super::count;
use crate::limits::{MAX_DEVICE_NAME_BYTES, MAX_DEVICES};
use anyhow::{Context as _, ensure};
use serde::Deserialize;
use zllm_engine::Isa;

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceSettings {
    pub(crate) name: String,
    /// Threads of a model that does not say.
    pub(crate) threads: usize,
    /// Processors that its threads may run on; all where there are none.
    pub(crate) cores: Vec<usize>,
    /// Which of its kernels it runs.
    pub(crate) isa: Isa,
}

/// Where a model goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PlaceSettings {
    /// Names of devices, each with one stage of the model, first to last. None: the first device.
    pub(crate) devices: Vec<String>,
    /// Layers of each; `None`: as many as each other.
    pub(crate) split: Option<Vec<usize>>,
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeviceKind {
    Cpu,
}

/// `[[devices]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceEntry {
    name: String,
    kind: DeviceKind,
    threads: Option<usize>,
    #[serde(default)]
    cores: Vec<usize>,
    isa: Option<String>,
}

impl DeviceSettings {
    /// The devices of the file; one, `cpu`, where it names none. A device that does not say has `threads` threads and the
    /// kernels of `isa`.
    ///
    /// # Errors
    /// A name that is there twice or is none, a count or a core that cannot work.
    pub(super) fn all(entries: Vec<DeviceEntry>, threads: usize, isa: Isa) -> anyhow::Result<Vec<Self>> {
        ensure!(entries.len() <= MAX_DEVICES, "{} devices; at most {MAX_DEVICES} work", entries.len());
        if entries.is_empty() {
            return Ok(vec![Self { name: "cpu".to_owned(), threads, cores: Vec::new(), isa }]);
        }
        let mut devices: Vec<Self> = Vec::with_capacity(entries.len());
        for DeviceEntry { name, kind: DeviceKind::Cpu, threads: own, cores, isa: own_isa } in entries {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            let is_name = (1..=MAX_DEVICE_NAME_BYTES).contains(&name.len()) && name.chars().all(plain);
            ensure!(
                is_name,
                "devices: {name:?} is no name; 1 to {MAX_DEVICE_NAME_BYTES} letters, digits, \"-\", \"_\" and \".\" work"
            );
            ensure!(!devices.iter().any(|other| other.name == name), "devices: {name:?} is there twice");
            let mine = if cores.is_empty() { threads } else { cores.len() };
            let threads = count(&format!("devices.{name}.threads"), own, mine)?;
            let allowed = allowed_processors();
            let wrong = cores.iter().find(|core| !allowed.contains(core));
            if let Some(core) = wrong {
                anyhow::bail!(
                    "devices.{name}.cores: {core} is no processor that zllmd may run on; {allowed:?} are"
                );
            }
            let isa = match own_isa {
                Some(given) => kernels(&format!("devices.{name}.isa"), Some(&given))?,
                None => isa,
            };
            devices.push(Self { name, threads, cores, isa });
        }
        Ok(devices)
    }

    /// The device in a line.
    pub(super) fn summary(&self) -> String {
        let Self { name, threads, cores, isa } = self;
        let where_ = if cores.is_empty() { String::new() } else { format!(" on processors {cores:?}") };
        format!("device {name}: cpu, {threads} threads{where_}, {} kernels", isa.name())
    }
}

/// The instruction set that `key` asks for, the best of this machine where it asks for none.
///
/// # Errors
/// There is no such set, or this machine does not have it.
pub(super) fn kernels(key: &str, given: Option<&str>) -> anyhow::Result<Isa> {
    let available = Isa::available();
    let Some(given) = given else { return Ok(Isa::best()) };
    let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
    let found = available.iter().find(|isa| isa.name() == given);
    found.copied().with_context(|| {
        format!("{key} is {given:?}, which this machine does not run; {} work", names.join(", "))
    })
}

impl PlaceSettings {
    /// `given` where it says something, else `default`; `of` is who says it.
    ///
    /// # Errors
    /// A device that is not there or is there twice, or a split of another length.
    pub(super) fn merge(
        of: &str,
        given: (Option<Vec<String>>, Option<Vec<usize>>),
        default: &Self,
        known: &[DeviceSettings],
    ) -> anyhow::Result<Self> {
        let (devices, split) = given;
        let place = match devices {
            Some(devices) => Self { devices, split },
            None => Self { split: split.or_else(|| default.split.clone()), ..default.clone() },
        };
        for (at, name) in place.devices.iter().enumerate() {
            let names: Vec<_> = known.iter().map(|device| device.name.as_str()).collect();
            ensure!(
                names.contains(&name.as_str()),
                "{of}.devices: {name:?} is no device; there are {}",
                names.join(", ")
            );
            ensure!(!place.devices[..at].contains(name), "{of}.devices: {name:?} is there twice");
        }
        if let Some(split) = &place.split {
            let devices = place.devices.len().max(1);
            ensure!(
                split.len() == devices && !split.contains(&0),
                "{of}.split is {split:?}; a number of layers for each of its {devices} devices works, each at least 1"
            );
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    const TWO: &str = "threads = 3\n[[devices]]\nname = \"a\"\nkind = \"cpu\"\nthreads = 2\n\
                       [[devices]]\nname = \"b\"\nkind = \"cpu\"\n";

    fn error(text: &str) -> String {
        read(&format!("{TWO}{text}"), &[]).expect_err("it cannot work").to_string()
    }

    #[test]
    fn without_devices_there_is_one_with_all_threads() {
        let config = read("", &["--threads", "5"]).expect("valid");
        let cpu = DeviceSettings { name: "cpu".into(), threads: 5, cores: Vec::new(), isa: Isa::best() };
        assert_eq!(config.devices, [cpu]);
        assert_eq!(config.model_defaults.place, PlaceSettings::default());
    }

    #[test]
    fn kernels_are_chosen_for_all_devices_or_one() {
        let text = format!("isa = \"scalar\"\n{TWO}isa = \"{}\"\n", Isa::best().name());
        let of = |args: &[&str]| -> Vec<Isa> {
            read(&text, args).expect("valid").devices.iter().map(|device| device.isa).collect()
        };
        assert_eq!(of(&[]), [Isa::Scalar, Isa::best()]);
        assert_eq!(of(&["--isa", Isa::best().name()]), [Isa::best(), Isa::best()]);
        let text = error("isa = \"neon\"\n");
        assert!(
            text.starts_with("devices.b.isa is \"neon\", which this machine does not run; scalar"),
            "{text}"
        );
        let text = read("", &["--isa", "fast"]).expect_err("there is none").to_string();
        assert!(text.starts_with("isa is \"fast\""), "{text}");
    }

    #[test]
    fn models_are_placed_on_devices_by_name() {
        let text = "[defaults]\ndevices = [\"b\"]\n[models.plain]\npath = \"p\"\n\
                    [models.cut]\npath = \"c\"\ndevices = [\"b\", \"a\"]\nsplit = [10, 20]\n";
        let config = read(&format!("{TWO}{text}"), &["--threads", "4"]).expect("valid");
        let threads: Vec<_> =
            config.devices.iter().map(|device| (device.name.as_str(), device.threads)).collect();
        assert_eq!(threads, [("a", 2), ("b", 4)]);
        let place = |name: &str| config.models[name].defaults.place.clone();
        assert_eq!(place("plain"), PlaceSettings { devices: vec!["b".into()], split: None });
        let cut = PlaceSettings { devices: vec!["b".into(), "a".into()], split: Some(vec![10, 20]) };
        assert_eq!(place("cut"), cut);
        assert!(
            config.summary().contains("model cut: /etc/zllm/c (on demand) on b+a"),
            "{}",
            config.summary()
        );
    }

    #[test]
    fn mistakes_are_named() {
        let model = "[models.m]\npath = \"m\"\n";
        assert_eq!(
            error(&format!("{model}devices = [\"a\", \"c\"]\n")),
            "models.m.devices: \"c\" is no device; there are a, b"
        );
        assert_eq!(
            error(&format!("{model}devices = [\"a\", \"a\"]\n")),
            "models.m.devices: \"a\" is there twice"
        );
        for wrong in ["devices = [\"a\", \"b\"]\nsplit = [3]", "split = [1, 2]", "split = [0]"] {
            let message = error(&format!("{model}{wrong}\n"));
            assert!(message.starts_with("models.m.split is ["), "{message}");
        }
        assert!(error("[[devices]]\nname = \"a\"\nkind = \"cpu\"\n").contains("\"a\" is there twice"));
        assert!(error("[[devices]]\nname = \"a b\"\nkind = \"cpu\"\n").contains("is no name"));
        assert!(error("[[devices]]\nname = \"c\"\nkind = \"gpu\"\n").contains("unknown variant `gpu`"));
        let zero = error("[[devices]]\nname = \"c\"\nkind = \"cpu\"\nthreads = 0\n");
        assert!(zero.starts_with("devices.c.threads is 0"), "{zero}");
        let far = error("[[devices]]\nname = \"c\"\nkind = \"cpu\"\ncores = [99999]\n");
        assert!(far.contains("99999 is no processor that zllmd may run on"), "{far}");
    }
}
