package secrets

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// needs are the capabilities of deploy/vault/bivouac.hcl, by the path after the mount. They are
// checked in both folders that Bivouac writes to.
//
//nolint:gochecknoglobals // read-only
var needs = []struct {
	path         string
	capabilities []string
}{
	{"data/", []string{"update", "read"}},
	{"delete/", []string{"update"}},
	{"undelete/", []string{"update"}},
	{"destroy/", []string{"update"}},
	{"metadata/", []string{"create", "update", "read", "list", "delete"}},
}

// missing returns, as a *DeniedError, the first capability that the token lacks on the paths with
// one of the prefixes begin. If Vault can't be asked it returns nil, and the operation itself
// reports what is wrong.
func (v *Vault) missing(ctx context.Context, s *session, begin ...string) error {
	lacks, err := v.lacks(ctx, s)
	if err != nil {
		return nil
	}
	for _, one := range lacks {
		for _, b := range begin {
			if strings.HasPrefix(one.Path, v.cfg.Mount+"/"+b) {
				return one
			}
		}
	}
	return nil
}

// permission is what the token needs on a path: sample is one of the paths that shown stands for.
type permission struct {
	sample, shown string
	capabilities  []string
}

// permissions are those of needs, in both folders.
func (v *Vault) permissions() (all []permission) {
	folders := []struct{ sample, shown string }{
		{v.cfg.Prefix + "/users/any", v.cfg.Prefix + "/*"},
		{v.cfg.NomadNamespace + "/" + sandboxFolder + "any/session", v.cfg.NomadNamespace + "/" + sandboxFolder + "*"},
	}
	for _, need := range needs {
		for _, f := range folders {
			begin := v.cfg.Mount + "/" + need.path
			all = append(all, permission{begin + f.sample, begin + f.shown, need.capabilities})
		}
	}
	return all
}

// lacks returns every capability of needs that the token lacks.
func (v *Vault) lacks(ctx context.Context, s *session) ([]*DeniedError, error) {
	return s.lacks(ctx, v.permissions())
}

// lacks returns the capabilities that the token lacks, in the order of all.
func (s *session) lacks(ctx context.Context, all []permission) (lacks []*DeniedError, err error) {
	paths := make([]string, len(all))
	for i, one := range all {
		paths[i] = one.sample
	}
	answer, err := s.client.Logical().WriteWithContext(ctx, "sys/capabilities-self", map[string]any{"paths": paths})
	if err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, fmt.Errorf("sys/capabilities-self gave no answer")
	}
	for _, one := range all {
		has := words(answer.Data[one.sample])
		for _, capability := range one.capabilities {
			if !slices.Contains(has, capability) && !slices.Contains(has, "root") {
				lacks = append(lacks, &DeniedError{Capability: capability, Path: one.shown})
			}
		}
	}
	return lacks, nil
}

// words returns the strings of a list.
func words(list any) []string {
	var all []string
	items, _ := list.([]any)
	for _, item := range items {
		if word, ok := item.(string); ok {
			all = append(all, word)
		}
	}
	return all
}
