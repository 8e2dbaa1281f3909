package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/ops/runbooks"
)

// foreign are messages in the runbooks that come from the kernel or a library.
var foreign = []string{
	"no space left on device", "input/output error", "permission denied", "read-only file system", "no such file",
	"no such file or directory", "segment is sealed", "rotate error", "git clean -fdx",
}

// shellWords start a code span that is a command line, not a message.
var shellWords = []string{
	"bivouac", "nomad", "vault", "systemctl", "journalctl", "ls", "df", "cat", "cp", "mv", "tar", "chown", "sha256sum",
	"openssl", "dmesg", "smartctl", "runuser", "promtool", "POST", "iostat", "du",
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	// ownName matches the name of a metric, or of what the program keeps in Nomad and Vault.
	ownName = regexp.MustCompile(`^bivouac_[a-z_]+$`)
)

// RunbookQuotes reports messages quoted in a runbook that are not part of any string of the
// program, and names of metrics that are no string of it. "…" in a quote stands for a variable
// part.
func RunbookQuotes(files []*File) []string {
	list, err := runbooks.List()
	if err != nil {
		return []string{err.Error()}
	}
	alerts, err := runbooks.Alerts()
	if err != nil {
		return []string{err.Error()}
	}
	texts := messages(files)
	var found []string
	for _, r := range append(list, alerts...) {
		page, err := runbooks.Read(r.Name)
		if err != nil {
			return []string{err.Error()}
		}
		for n, line := range strings.Split(page.Text, "\n") {
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				quoted := m[1]
				if ownName.MatchString(quoted) && !slices.Contains(texts, quoted) {
					found = append(found, fmt.Sprintf("ops/runbooks/%s.md:%d: no name in the program is %q", r.Name, n+1, quoted))
				}
				if isMessage(quoted) && !anyHas(texts, quoted) {
					found = append(found, fmt.Sprintf("ops/runbooks/%s.md:%d: no message of the program is %q", r.Name, n+1, quoted))
				}
			}
		}
	}
	return found
}

// isMessage tells a quoted message from a command line, a setting or a name.
func isMessage(span string) bool {
	first, _, spaced := strings.Cut(span, " ")
	return spaced && !slices.Contains(shellWords, first) && !slices.Contains(foreign, span) &&
		!strings.ContainsAny(first, "-/=") && !strings.ContainsAny(span, "{=")
}

func anyHas(texts []string, quoted string) bool {
	parts := strings.Split(quoted, "…")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(p))
	}
	pattern := regexp.MustCompile(strings.Join(parts, ".*"))
	return slices.ContainsFunc(texts, pattern.MatchString)
}

// messages returns the program's strings; strings joined by + count as one.
func messages(files []*File) []string {
	var texts []string
	for _, f := range files {
		if f.IsTest() || f.Top() == "ops" || f.Top() == "deploy" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if text := joined(e); text != "" {
					texts = append(texts, text)
					return false
				}
			}
			return true
		})
	}
	return texts
}

// joined returns the text of a string or of strings joined by +, with a line break for any
// other operand; "" for other expressions.
func joined(e ast.Expr) string {
	switch v := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(v.Value)
		if v.Kind != token.STRING || err != nil {
			return ""
		}
		return text
	case *ast.BinaryExpr:
		if v.Op != token.ADD {
			return ""
		}
		left, right := joined(v.X), joined(v.Y)
		if left == "" && right == "" {
			return ""
		}
		return left + right
	}
	return ""
}
