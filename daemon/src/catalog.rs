//! Which models there are: those of the configuration by name, and every `NAME.gguf` of the models folder.

use crate::config::{LoadWhen, ModelDefaults, ModelSettings};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The models that can be asked for.
#[derive(Debug, Clone)]
pub(crate) struct Catalog {
    configured: BTreeMap<String, ModelSettings>,
    folder: Option<PathBuf>,
    defaults: ModelDefaults,
}

impl Catalog {
    pub(crate) fn new(
        configured: BTreeMap<String, ModelSettings>,
        folder: Option<PathBuf>,
        defaults: ModelDefaults,
    ) -> Self {
        Self { configured, folder, defaults }
    }

    /// The settings of `name`. A configured model goes before a file of the same name.
    pub(crate) fn find(&self, name: &str) -> Option<ModelSettings> {
        self.configured.get(name).cloned().or_else(|| {
            // A name comes from a client: it must not lead out of the folder.
            let plain = !name.is_empty() && !name.contains(['/', '\0']) && !name.starts_with('.');
            let path = self.folder.as_ref().filter(|_| plain)?.join(format!("{name}.gguf"));
            path.is_file().then(|| self.in_folder(path))
        })
    }

    /// All models by name. A folder that cannot be read has none.
    pub(crate) fn list(&self) -> BTreeMap<String, ModelSettings> {
        let entries =
            self.folder.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let mut models: BTreeMap<_, _> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let name = name.strip_suffix(".gguf").filter(|name| !name.starts_with('.'))?;
                Some((name.to_owned(), self.in_folder(entry.path())))
            })
            .collect();
        models.extend(self.configured.clone());
        models
    }

    fn in_folder(&self, path: PathBuf) -> ModelSettings {
        ModelSettings { path, load: LoadWhen::Demand, defaults: self.defaults.clone() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::KvFormatName;

    pub(crate) fn defaults() -> ModelDefaults {
        ModelDefaults {
            kv_format: KvFormatName::I16,
            kv_budget_bytes: 1 << 20,
            context_tokens: None,
            threads: 1,
            prefill_chunk_tokens: 64,
            batch_rows: 4,
        }
    }

    #[test]
    fn files_and_configured_models_are_found_and_nothing_outside_of_the_folder() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let models = folder.path().join("models");
        std::fs::create_dir(&models).expect("scratch folder");
        for file in
            ["models/a.gguf", "models/b.gguf", "models/.hidden.gguf", "models/note.txt", "outside.gguf"]
        {
            std::fs::write(folder.path().join(file), "").expect("scratch file");
        }
        let special =
            ModelSettings { path: "/special/b".into(), load: LoadWhen::Demand, defaults: defaults() };
        let configured = BTreeMap::from([("b".to_owned(), special)]);
        let catalog = Catalog::new(configured, Some(models.clone()), defaults());
        assert_eq!(catalog.list().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(catalog.find("a").expect("a file").path, models.join("a.gguf"));
        assert_eq!(catalog.find("b").expect("configured").path, PathBuf::from("/special/b"));
        for wrong in ["c", "", "../outside", "/etc/passwd", ".hidden", "a\0"] {
            assert!(catalog.find(wrong).is_none(), "{wrong:?}");
        }
    }
}
