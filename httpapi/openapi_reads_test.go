package httpapi

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/decode"
)

// reader is a call that reads a parameter or a member by its name.
var reader = regexp.MustCompile(`\.(?:Last|All|Required|Text|Texts|Title|MustText|Integer|MustInteger|Number|` +
	`Boolean|BooleanOr|Time|Enum|UUID|Object|Dict|List|Elements|Address|Endpoint|Repository|MustRepository)` +
	`\("([a-z_]+)"`)

// TestDescription_HasWhatIsRead: every name in a reader's call is recorded for some route. A handler that
// reads after its check, or in a branch that the recording does not take, is described too little.
func TestDescription_HasWhatIsRead(t *testing.T) {
	t.Parallel()
	recorded := map[string]bool{}
	var walk func(map[string]*decode.Member)
	walk = func(members map[string]*decode.Member) {
		for name, m := range members {
			recorded[name] = true
			for ; m != nil; m = m.Each {
				walk(m.Members)
			}
		}
	}
	for _, r := range routes() {
		for _, picks := range []map[string]string{nil, {"type": "image"}} {
			reads := record(t, r, picks)
			walk(reads.Parameters)
			walk(reads.Body.Members)
		}
	}
	for _, dir := range []string{".", "git", "legacy", "operators", "request"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, call := range reader.FindAllStringSubmatch(string(readFile(t, name)), -1) {
				if !recorded[call[1]] {
					t.Errorf("%s reads %q, and no recorded request shows it", name, call[1])
				}
			}
		}
	}
}
