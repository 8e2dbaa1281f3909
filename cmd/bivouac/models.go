package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/native"
)

// tryFlags say which model `models try` asks, where, and with which key.
type tryFlags struct {
	api                             apiFlags
	model, baseURL, keyFile, caFile string
	timeout                         int
}

func (p *program) modelsCommand() *cobra.Command {
	return groupCommand("models", "Try servers of models", p.modelsTryCommand())
}

func (p *program) modelsTryCommand() *cobra.Command {
	var f tryFlags
	cmd := &cobra.Command{
		Use:   "try [NAME]",
		Short: "Ask a model's server what it takes: window, streaming, tools, pictures",
		Long: `Ask a model's server three short questions, as the built-in agent would, and say what
it takes: whether it is reached, the window, streaming, calls of tools, several calls in
one answer, pictures, and what was repaired because the server refused it.

NAME is one of your LLM profiles; without it your settings say the model and its URL, or
--model and --base-url do without asking a node. It asks from this machine, not from a
node: llm { hosts } and llm { servers } count for nodes alone. The model's key is the
environment's LLM_API_KEY or in --model-key-file; no node gives a stored one away. The
questions cost some hundred tokens. The exit code is 1 if the model does not answer.`,
		Example: `  bivouac models try
  LLM_API_KEY=sk-... bivouac models try work --json
  bivouac models try --model hosted_vllm/qwen3 --base-url http://10.1.2.3:8000/v1`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.tryModel(cmd, &f, args)
		},
	}
	f.api.register(cmd)
	f.api.registerJSON(cmd)
	cmd.Flags().StringVar(&f.model, "model", "", "the model, with its vendor's prefix")
	cmd.Flags().StringVar(&f.baseURL, "base-url", "", "the server's URL (default: the model's vendor's)")
	cmd.Flags().StringVar(&f.keyFile, "model-key-file", "", "file that holds the model's key (default $LLM_API_KEY)")
	cmd.Flags().StringVar(&f.caFile, "model-ca-file", "", "CA certificate to trust for the model's server")
	cmd.Flags().IntVar(&f.timeout, "timeout", 0, "seconds to wait for an answer (default 300)")
	return cmd
}

func (p *program) tryModel(cmd *cobra.Command, f *tryFlags, args []string) error {
	if f.model != "" && len(args) > 0 {
		return usagef("--model: a profile has its own")
	}
	key, err := p.keyOf("LLM_API_KEY", "--model-key-file", f.keyFile)
	if err != nil {
		return err
	}
	llm := engine.LLM{Model: f.model, BaseURL: f.baseURL, APIKey: key, Timeout: f.timeout}
	if llm.Model == "" {
		if err := p.storedModel(cmd, f, args, &llm); err != nil {
			return err
		}
	}
	transport, err := clientTransport(f.caFile, false)
	if err != nil {
		return err
	}
	var x native.Examination
	err = withProgress(cmd.Context(), p.stderr, "asking "+llm.Model, func(ctx context.Context) error {
		x = native.Examine(ctx, llm, transport)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	if f.api.asJSON {
		err = printJSON(p.stdout, x)
	} else {
		err = p.printExamination(x)
	}
	if err == nil && !x.Reachable {
		err = errors.New("the model does not answer: " + x.Error)
	}
	return err
}

// storedModel reads the model and its URL of a profile, or of the settings.
func (p *program) storedModel(cmd *cobra.Command, f *tryFlags, args []string, llm *engine.LLM) error {
	c, err := p.client(&f.api)
	if err != nil {
		return err
	}
	var in struct {
		Model    *string `json:"llm_model"`
		BaseURL  *string `json:"llm_base_url"`
		Settings struct {
			Model   *string `json:"model"`
			BaseURL *string `json:"base_url"`
		} `json:"config"`
	}
	path := "/api/settings"
	if len(args) > 0 {
		path = "/api/v1/settings/profiles/" + url.PathEscape(args[0])
	}
	if err := p.waiting(cmd, c, http.MethodGet, path, nil, &in); err != nil {
		return err
	}
	llm.Model = deref(cmp.Or(in.Settings.Model, in.Model))
	llm.BaseURL = cmp.Or(llm.BaseURL, deref(cmp.Or(in.Settings.BaseURL, in.BaseURL)))
	if llm.Model == "" {
		return usagef("your settings name no model: give --model")
	}
	return nil
}

func (p *program) printExamination(x native.Examination) error {
	window := "unknown"
	if x.Window > 0 {
		window = fmt.Sprintf("%d tokens, by the %s", x.Window, x.WindowFrom)
	}
	rows := [][2]string{{"model", x.Model}, {"server", x.Endpoint}, {"reachable", yesNo(x.Reachable)}}
	if x.Reachable {
		rows = append(rows, [][2]string{
			{"first answer", fmt.Sprintf("%.1f s", x.FirstSeconds)}, {"window", window},
			{"streaming", yesNo(x.Streaming)}, {"tools", x.Tools}, {"parallel calls", yesNo(x.Parallel)},
			{"vision", x.Vision}, {"repaired", strings.Join(x.Repaired, "; ")},
		}...)
	}
	return printFacts(p.stdout, rows)
}
