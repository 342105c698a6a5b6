//! The tools of a response: functions are shown to the model, those of namespaces as well; what this server would have to run
//! itself is passed over, and the answer says so.

use crate::http::problem::Problem;
use crate::limits::MAX_TOOLS;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

use super::items::shown;

/// The functions that the model may call.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// Namespace and name by the name that the model is shown, of those that have a namespace.
    called: HashMap<String, (String, String)>,
    /// The other way: the name that the model is shown, by namespace and then by name.
    shown: HashMap<String, HashMap<String, String>>,
}

/// Tools as the model is shown them.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// In the form that chat templates know.
    pub(super) shown: Vec<Value>,
    pub(super) names: Names,
    /// Kinds of those that are not run here.
    pub(super) skipped: Vec<String>,
    /// Names that a function with a namespace cannot be shown by.
    taken: HashSet<String>,
}

impl Names {
    /// The name that the model knows a function by.
    pub(super) fn shown(&self, namespace: Option<&str>, name: &str) -> String {
        let shown = namespace.and_then(|namespace| self.shown.get(namespace)?.get(name));
        shown.map_or(name, String::as_str).to_owned()
    }

    /// Namespace and name of the function that the model called.
    pub(super) fn called(&self, shown: String) -> (Option<String>, String) {
        match self.called.get(&shown) {
            Some((namespace, name)) => (Some(namespace.clone()), name.clone()),
            None => (None, shown),
        }
    }
}

impl Tools {
    /// # Errors
    /// What cannot be honoured, by its name.
    pub(super) fn read(tools: &[Value]) -> Result<Self, Problem> {
        let count: usize = tools.iter().map(|tool| 1 + tool["tools"].as_array().map_or(0, Vec::len)).sum();
        if count > MAX_TOOLS {
            return Err(Problem::of("tools", format!("there are {count} tools; at most {MAX_TOOLS} work")));
        }
        // A function without a namespace keeps its name, wherever it stands.
        let plain = tools.iter().filter(|tool| tool["type"] == "function");
        let taken = plain.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect();
        let mut read = Self { taken, ..Self::default() };
        for (place, tool) in tools.iter().enumerate() {
            let param = format!("tools[{place}]");
            match tool["type"].as_str() {
                Some("function") => read.function(tool, None, &param)?,
                Some("namespace") => {
                    let name = tool["name"].as_str().unwrap_or_default();
                    for (inner, tool) in tool["tools"].as_array().into_iter().flatten().enumerate() {
                        if tool["type"] == "function" {
                            read.function(tool, Some(name), &format!("{param}.tools[{inner}]"))?;
                        } else {
                            read.skip(tool["type"].as_str().unwrap_or("unnamed"));
                        }
                    }
                }
                Some(other) => read.skip(other),
                None => {
                    let param = format!("{param}.type");
                    return Err(Problem::of(&param, format!("{param} is missing")));
                }
            }
        }
        if !read.skipped.is_empty() {
            tracing::warn!(kinds = ?read.skipped, "tools that are not run here are not shown to the model");
        }
        Ok(read)
    }

    fn skip(&mut self, kind: &str) {
        let kind = shown(kind);
        if !self.skipped.contains(&kind) {
            self.skipped.push(kind);
        }
    }

    fn function(&mut self, tool: &Value, namespace: Option<&str>, param: &str) -> Result<(), Problem> {
        let refused = |field: &str, what: &str| {
            let param = format!("{param}.{field}");
            Err(Problem::of(&param, format!("{param} {what}")))
        };
        let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
            return refused("name", "is missing");
        };
        if tool["strict"] == true {
            return refused("strict", "is not served yet");
        }
        let mut shown = name.to_owned();
        if let Some(namespace) = namespace {
            if self.taken.contains(name) {
                shown = format!("{namespace}.{name}");
            }
            if !self.taken.insert(shown.clone()) {
                return refused("name", "is there twice");
            }
            self.names.called.insert(shown.clone(), (namespace.to_owned(), name.to_owned()));
            self.names.shown.entry(namespace.to_owned()).or_default().insert(name.to_owned(), shown.clone());
        }
        let mut function = Map::from_iter([("name".to_owned(), Value::from(shown))]);
        for field in ["description", "parameters"] {
            let value = tool.get(field).filter(|value| !value.is_null());
            value.map(|value| function.insert(field.to_owned(), value.clone()));
        }
        self.shown.push(json!({ "type": "function", "function": function }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_flattened_and_known_again() {
        let function =
            |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
        let space = |name: &str, functions: Vec<Value>| json!({"type": "namespace", "name": name, "tools": functions});
        let tools = Tools::read(&[
            function("run"),
            space("a", vec![function("look"), json!({"type": "custom", "name": "x"})]),
            space("b", vec![function("look"), function("run")]),
            json!({"type": "web_search"}),
            json!({"type": "web_search"}),
        ])
        .expect("tools");
        let names: Vec<&Value> = tools.shown.iter().map(|tool| &tool["function"]["name"]).collect();
        assert_eq!(names, ["run", "look", "b.look", "b.run"]);
        assert_eq!(
            tools.shown[0],
            json!({"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}})
        );
        assert_eq!(tools.skipped, ["custom", "web_search"]);
        for (shown, namespace, name) in [
            ("run", None, "run"),
            ("look", Some("a"), "look"),
            ("b.look", Some("b"), "look"),
            ("b.run", Some("b"), "run"),
        ] {
            assert_eq!(tools.names.called(shown.to_owned()), (namespace.map(str::to_owned), name.to_owned()));
            assert_eq!(tools.names.shown(namespace, name), shown);
        }
        // What no tool of this request is keeps its name.
        assert_eq!(tools.names.shown(Some("gone"), "f"), "f");
        // One without a namespace keeps its name also where it stands behind.
        let tools = Tools::read(&[space("a", vec![function("run")]), function("run")]).expect("tools");
        assert_eq!(tools.names.called("run".to_owned()), (None, "run".to_owned()));
        assert_eq!(tools.names.called("a.run".to_owned()), (Some("a".to_owned()), "run".to_owned()));
        let twice = Tools::read(&[function("run"), function("a.run"), space("a", vec![function("run")])]);
        assert_eq!(twice.expect_err("one name for two").param.as_deref(), Some("tools[2].tools[0].name"));
        let many = Tools::read(&[space("a", vec![function("f"); MAX_TOOLS])]);
        assert_eq!(many.expect_err("too many").param.as_deref(), Some("tools"));
        let error =
            Tools::read(&[space("a", vec![json!({"type": "function", "name": "f", "strict": true})])]);
        assert_eq!(error.expect_err("strict").param.as_deref(), Some("tools[0].tools[0].strict"));
    }
}
