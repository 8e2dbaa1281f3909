// Modeltable writes the table of models' profiles (scheduler/agent/preset/models.tsv) out of Catwalk,
// the catalogue that the agent Crush is released with. It is a Go module, so that the version is
// pinned and its content is checked against Go's checksum database.
//
//	go run ./ops/agents/modeltable -out scheduler/agent/preset/models.tsv
package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// The catalogue, and the sum of its content in the form of go.sum.
const (
	module  = "charm.land/catwalk"
	version = "v0.52.86"
	sum     = "h1:NEP2RXZWj8amSaywrhf2TGWPxHEKCxSdJZdnATGFQ4A="
	configs = "/internal/providers/configs/"
)

// vendors are the prefixes of scheduler/agent/preset and the catalogue's names for them.
func vendors() map[string]string {
	return map[string]string{
		"openai": "openai", "anthropic": "anthropic", "gemini": "gemini", "openrouter": "openrouter",
		"deepseek": "deepseek", "groq": "groq", "xai": "xai", "dashscope": "alibaba-singapore",
		"moonshot": "moonshot", "fireworks_ai": "fireworks", "cerebras": "cerebras", "azure": "azure",
	}
}

// model is a model of the catalogue. Its prices are US dollars for a million tokens.
type model struct {
	ID     string  `json:"id"`
	Window int64   `json:"context_window"`
	Output int64   `json:"default_max_tokens"`
	Vision bool    `json:"supports_attachments"`
	In     float64 `json:"cost_per_1m_in"`
	Out    float64 `json:"cost_per_1m_out"`
	// Some of the catalogue's sources put the price of reading a cache into Cache, others into Read.
	Cache float64 `json:"cost_per_1m_in_cached"`
	Read  float64 `json:"cost_per_1m_out_cached"`
}

func main() {
	out := flag.String("out", "", "the file to write")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "modeltable:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	archive, err := download()
	if err != nil {
		return err
	}
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	var lines []string
	for prefix, name := range vendors() {
		models, err := read(&z.Reader, name)
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		for _, m := range models {
			lines = append(lines, m.line(prefix))
		}
	}
	slices.Sort(lines)
	head := fmt.Sprintf("# Made by ops/agents/modeltable out of %s %s (MIT): vendor, model, window, output,\n"+
		"# vision, then US dollars for a million tokens: input, output, read and written cache. 0 and - are unknown.\n",
		module, version)
	return os.WriteFile(out, []byte(head+strings.Join(slices.Compact(lines), "\n")+"\n"), 0o644)
}

// download returns the path of the module's archive. The module may want a newer Go than this one,
// which hinders its use as code alone.
func download() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module+"@"+version)
	text, _ := cmd.Output() // the text has the error
	var got struct{ Zip, Sum, Error string }
	if err := json.Unmarshal(text, &got); err != nil {
		return "", err
	}
	if got.Sum != sum {
		return "", fmt.Errorf("%s@%s has the sum %q, want %q: %s", module, version, got.Sum, sum, got.Error)
	}
	return got.Zip, nil
}

func read(z *zip.Reader, name string) ([]model, error) {
	f, err := z.Open(module + "@" + version + configs + name + ".json")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(f); err != nil {
		return nil, err
	}
	var provider struct{ Models []model }
	return provider.Models, json.Unmarshal(text.Bytes(), &provider)
}

// line is a line of the table. A price of Cache below the input's is one for reading, and one of Read
// above it a mistake.
func (m model) line(prefix string) string {
	read, written := "-", "-"
	switch {
	case m.Read > 0 && m.Read <= m.In:
		read = number(m.Read)
	case m.Cache > 0 && m.Cache < m.In:
		read = number(m.Cache)
	}
	if m.Cache > m.In {
		written = number(m.Cache)
	}
	in, out := number(m.In), number(m.Out)
	if m.In == 0 && m.Out == 0 && !strings.HasSuffix(m.ID, ":free") {
		in, out = "-", "-"
	}
	return strings.Join([]string{
		prefix, strings.ToLower(m.ID), strconv.FormatInt(m.Window, 10), strconv.FormatInt(m.Output, 10),
		strconv.FormatBool(m.Vision), in, out, read, written,
	}, "\t")
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
