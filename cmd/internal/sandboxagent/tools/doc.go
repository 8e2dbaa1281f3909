// Package tools has the tools that the native engine offers a model: a terminal, a file editor, a
// task list, think and finish. Each describes itself to the model, checks the model's arguments and
// runs. The package also has what other sources of tools (cmd/internal/sandboxagent/mcp) need to be offered
// beside them: the interface Tool, and the check of arguments against a table of parameters.
//
// Tools run commands and change files as the user of Config.Credential. Values of secrets are
// masked in every observation.
package tools
