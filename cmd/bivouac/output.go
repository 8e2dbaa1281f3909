package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// progressDelay is how long a command may run without output.
const progressDelay = 2 * time.Second

// printTable writes rows under a heading in aligned columns. An empty cell becomes "-", so that
// every row has as many words as the heading. What is not printable is replaced.
func printTable(w io.Writer, heading []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heading, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = orDash(printable(c))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// printJSON writes v as indented JSON. What a terminal would obey is escaped.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapeUnprintable(text.String()))
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// withProgress runs fn. While fn takes longer than progressDelay, it prints on w what the
// command waits for.
func withProgress(ctx context.Context, w io.Writer, what string, fn func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	began := time.Now()
	tick := time.NewTicker(progressDelay)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			fmt.Fprintf(w, "%s ... %d s\n", what, int(time.Since(began).Seconds()))
		}
	}
}

// done prints a command's result, as JSON with --json, else as text.
func (p *program) done(api *apiFlags, result any, format string, args ...any) error {
	if api.asJSON {
		return printJSON(p.stdout, result)
	}
	_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
	return err
}

// confirm asks before an irreversible step. Without an answer it returns an error.
func (p *program) confirm(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	fmt.Fprintf(p.stderr, format+" [y/N] ", args...)
	answer, err := bufio.NewReader(p.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		fmt.Fprintln(p.stderr)
		return usagef("nothing was done: nobody answered; scripts say --yes")
	}
	return errors.New("nothing was done")
}
