package fsm

import (
	"fmt"
	"testing"
	"time"
)

// A value that was replaced counts for its user for as long as the secret store keeps it: whoever replaces
// a large one again and again meets the limit. The admission before the write says the same as Apply.
func TestReplacedSecrets_Count(t *testing.T) {
	t.Parallel()
	bodies := map[string]func(version int) Body{
		"custom secret": func(version int) Body {
			return &SettingsPutBody{
				CustomSecrets: []CustomSecret{
					{Name: "s", Ref: SecretRef{Path: "users/ada/custom/s", Version: version, Bytes: MaxSecretBytes}},
				},
			}
		},
		"setting": func(version int) Body {
			return &SettingsPutBody{
				LLMAPIKey: &SecretRef{Path: "users/ada/settings/llm_api_key", Version: version, Bytes: MaxSecretBytes},
			}
		},
		"provider": func(version int) Body {
			return &ProvidersReplaceBody{
				Providers: []Provider{
					{
						Type: ProviderGitHub,
						Ref:  SecretRef{Path: "users/ada/providers/github", Version: version, Bytes: MaxSecretBytes},
					},
				},
			}
		},
		"another provider each time": func(version int) Body {
			return &ProvidersReplaceBody{Providers: []Provider{{
				Type: []ProviderType{
					ProviderGitHub,
					ProviderGitLab,
				}[version%2], Ref: SecretRef{
					Path:    fmt.Sprint("users/ada/providers/", version%2),
					Version: version,
					Bytes:   MaxSecretBytes,
				},
			}}}
		},
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newStateFixture(t)
			n := 0
			for n = 1; n < 100; n++ {
				cmd := f.command("ada", body(n))
				admitted := f.store.View().GrowthAdmission(cmd)
				if _, err := f.apply(cmd); (err == nil) != (admitted == nil) {
					t.Fatalf("%d: Apply says %v, the admission before it %v", n, err, admitted)
				} else if err != nil {
					break
				}
			}
			if n < 3 || n > 5 {
				t.Fatalf("%d values of 512 KiB fit 2 MiB", n-1)
			}
			f.now = f.now.Add(ReplacedTTL + time.Minute)
			if err := f.store.View().GrowthAdmission(f.command("ada", body(n))); err != nil {
				t.Errorf("when the store has removed them the admission says %v", err)
			}
			f.do("ada", body(n))
			f.do("root", &APIKeyCreateBody{Lookup: "ka", Hash: sha("ka"), UserID: "ada"})
			f.do("root", &UserDeleteBody{UserID: "ada"})
			if got := f.store.View().Usage("ada"); got != (Usage{}) {
				t.Errorf("a purge leaves %+v", got)
			}
		})
	}
}

// Commands of whatever kind remove what counts no longer.
func TestReplacedSecrets_AreForgotten(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	for n := range 20 {
		f.do("ada",
			&SettingsPutBody{LLMAPIKey: &SecretRef{Path: "users/ada/settings/llm_api_key", Version: n + 1, Bytes: 10}})
	}
	term := func(n int) { f.do("", &TermOpenBody{Term: uint64(n + 2), Node: "n1", ClusterID: "test"}) }
	for n := range forgetReplacedEvery {
		term(n)
	}
	if n := f.rows(tableReplaced); n != 19 {
		t.Errorf("%d values count before their time is over, want 19", n)
	}
	f.now = f.now.Add(ReplacedTTL + time.Minute)
	for n := range forgetReplacedEvery {
		term(forgetReplacedEvery + n)
	}
	if n := f.rows(tableReplaced); n != 0 {
		t.Errorf("%d values are left", n)
	}
}

// A value that stays in its row is not replaced, and one that goes with nothing in its place is.
func TestReplacedSecrets_InUse(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	ref := func(version int) *SecretRef {
		return &SecretRef{Path: "users/ada/settings/llm_api_key", Version: version, Bytes: 1000}
	}
	f.do("ada", &SettingsPutBody{LLMAPIKey: ref(1)})
	f.do("ada", &SettingsPutBody{LLMAPIKey: ref(1)})
	f.do("ada", &SettingsPutBody{})
	if n := f.rows(tableReplaced); n != 0 {
		t.Errorf("%d values count as replaced", n)
	}
	f.do("ada", &SettingsPutBody{LLMAPIKey: ref(2)})
	f.do("ada", &SettingsPutBody{LLMAPIKey: &SecretRef{}})
	if n := f.rows(tableReplaced); n != 2 {
		t.Errorf("%d values count as replaced", n)
	}
}

// rows counts the rows of a table.
func (f *fixture) rows(table string) (n int) {
	for range withPrefix[replacedSecret](f.store.View().txn, table, indexID, nil) {
		n++
	}
	return n
}
