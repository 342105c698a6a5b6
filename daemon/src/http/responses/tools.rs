//! The tools of a response: functions are shown to the model, those of namespaces as well; what this server would have to run
//! itself is passed over, and the answer says so.

use crate::http::problem::Problem;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

use super::items::shown;

/// The functions that the model may call.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// Namespace and name by the name that the model is shown, of those that have a namespace.
    spaced: HashMap<String, (String, String)>,
}

/// Tools as the model is shown them.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// In the form that chat templates know.
    pub(super) shown: Vec<Value>,
    pub(super) names: Names,
    /// Kinds of those that are not run here.
    pub(super) skipped: Vec<String>,
}

impl Names {
    /// The name that the model knows a function by.
    pub(super) fn shown(&self, namespace: Option<&str>, name: &str) -> String {
        let Some(namespace) = namespace else { return name.to_owned() };
        let is_it = |spaced: &&(String, String)| (spaced.0.as_str(), spaced.1.as_str()) == (namespace, name);
        let found = self.spaced.iter().find(|(_, spaced)| is_it(spaced));
        found.map_or(name, |(shown, _)| shown).to_owned()
    }

    /// Namespace and name of the function that the model called.
    pub(super) fn called(&self, shown: String) -> (Option<String>, String) {
        match self.spaced.get(&shown) {
            Some((namespace, name)) => (Some(namespace.clone()), name.clone()),
            None => (None, shown),
        }
    }
}

impl Tools {
    /// # Errors
    /// What cannot be honoured, by its name.
    pub(super) fn read(tools: &[Value]) -> Result<Self, Problem> {
        let mut read = Self::default();
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
        let is_taken = self.shown.iter().any(|other| other["function"]["name"] == name);
        let shown = match namespace {
            Some(namespace) if is_taken => format!("{namespace}.{name}"),
            _ => name.to_owned(),
        };
        if let Some(namespace) = namespace {
            self.names.spaced.insert(shown.clone(), (namespace.to_owned(), name.to_owned()));
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
        let error =
            Tools::read(&[space("a", vec![json!({"type": "function", "name": "f", "strict": true})])]);
        assert_eq!(error.expect_err("strict").param.as_deref(), Some("tools[0].tools[0].strict"));
    }
}
