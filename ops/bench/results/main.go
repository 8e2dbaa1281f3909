// Command results compares the commits and protocol versions of the sections of ops/bench/RESULTS.md
// with those of HEAD. `make release` asks it and is refused; `make check` has it note what is old.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	root := flag.String("root", ".", "the root of Bivouac's tree")
	note := flag.Bool("note", false, "print what is old in a line and succeed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *root, *note, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "results: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, note bool, out io.Writer) error {
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(resultsFile)))
	if err != nil {
		return err
	}
	current, _ := parse(string(raw))
	old, err := outdated(ctx, root, current)
	switch {
	case note && err != nil:
		fmt.Fprintf(out, "note: %s was not compared with this commit: %v\n", resultsFile, err)
		return nil
	case note && len(old) > 0:
		fmt.Fprintf(out, "note: %s is not of this commit (make bench measures again): %s\n", resultsFile,
			strings.Join(old, "; "))
		return nil
	case err != nil:
		return err
	case len(old) > 0:
		return fmt.Errorf("%s is not of this commit; run make bench on it and commit the results:\n  %s", resultsFile,
			strings.Join(old, "\n  "))
	}
	return nil
}

const (
	resultsFile = "ops/bench/RESULTS.md"
	// earlierHeading begins the measurements that are kept for comparison.
	earlierHeading = "# Earlier measurements"
)

// measurement is what a section says of the program that it measured.
type measurement struct {
	section, commit string
	protocol        int
}

// parse returns the measurements above earlierHeading, and the headings of all sections of the text
// that name neither commit nor protocol version.
func parse(text string) (current []measurement, unnamed []string) {
	named := regexp.MustCompile(`^Measured at commit ([0-9a-f]{7,40}(?:-dirty)?), protocol version (\d+)\b`)
	section, found, earlier := "", true, false
	end := func() {
		if !found {
			unnamed = append(unnamed, section)
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == earlierHeading {
			earlier = true
		}
		if title, is := strings.CutPrefix(line, "## "); is {
			end()
			section, found = title, false
		}
		m := named.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		found = true
		if protocol, err := strconv.Atoi(m[2]); err == nil && !earlier {
			current = append(current, measurement{section, m[1], protocol})
		}
	}
	end()
	return current, unnamed
}

// outdated returns a line for each commit in the measurements that differs from HEAD in more than
// documents, and for each protocol version that is not HEAD's.
func outdated(ctx context.Context, root string, current []measurement) (lines []string, err error) {
	protocol, err := protocolOf(ctx, root, "HEAD")
	if err != nil {
		return nil, err
	}
	if len(current) == 0 {
		return []string{"no section names a commit"}, nil
	}
	changes := map[string]string{}
	for _, m := range current {
		if _, known := changes[m.commit]; !known {
			if changes[m.commit], err = changed(ctx, root, m.commit); err != nil {
				return nil, err
			}
		}
		switch why := changes[m.commit]; {
		case why != "":
			lines = append(lines, fmt.Sprintf("%q is of commit %s: %s", m.section, m.commit, why))
		case m.protocol != protocol:
			lines = append(lines,
				fmt.Sprintf("%q is of protocol version %d, and this commit has %d", m.section, m.protocol, protocol))
		}
	}
	return slices.Compact(lines), nil
}

// changed says what the commit does not share with HEAD, "" if only documents differ.
func changed(ctx context.Context, root, commit string) (string, error) {
	if strings.HasSuffix(commit, "-dirty") {
		return "the tree had changes that were in no commit", nil
	}
	if _, err := git(ctx, root, "rev-parse", "--verify", "--quiet", commit+"^{commit}"); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "git does not know it here (in a shallow checkout: git fetch --unshallow)", nil
	}
	names, err := git(ctx, root, "diff", "--name-only", commit, "HEAD")
	if err != nil {
		return "", err
	}
	var program []string
	for _, name := range strings.Fields(names) {
		if !document(name) {
			program = append(program, name)
		}
	}
	if len(program) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d files that are no documents changed since, %s one of them", len(program), program[0]), nil
}

// document reports whether a file has nothing to do with what is measured.
func document(name string) bool {
	return path.Ext(name) == ".md" || strings.HasPrefix(name, "ops/bench/plots/") ||
		name == "ops/bench/peers.jsonl" || name == "ops/bench/BASE"
}

// protocolOf returns the newest protocol version that a commit's program knows.
func protocolOf(ctx context.Context, root, commit string) (int, error) {
	text, err := git(ctx, root, "show", commit+":fsm/version.go")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^const ProtocolVersion = (\d+)$`).FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("fsm/version.go of %s has no ProtocolVersion", commit)
	}
	return strconv.Atoi(m[1])
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
