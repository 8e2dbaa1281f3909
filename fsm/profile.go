package fsm

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/hashicorp/go-memdb"
)

// ProfileKind says what a profile is a choice of.
type ProfileKind string

// The kinds of profiles.
const (
	// ProfileLLM is a model, its base URL and its key. The active one is where the settings lead.
	ProfileLLM ProfileKind = "llm"
	// ProfileAgent is a document that says which agent a conversation gets. It holds no secret.
	ProfileAgent ProfileKind = "agent"
)

// The bounds of profiles.
const (
	// MaxProfiles is how many profiles of a kind a user has.
	MaxProfiles = 50
	// MaxProfileName bounds a name, in characters.
	MaxProfileName = 64
	// MaxProfileDocument bounds the document of an agent profile, in bytes.
	MaxProfileDocument = 64 << 10
)

// Profile is a choice that a user has saved under a name (VersionProfiles).
type Profile struct {
	UserID string      `json:"user_id"`
	Kind   ProfileKind `json:"kind"`
	// Name is unique among the user's profiles of the kind. ID outlives a rename and a save.
	Name string `json:"name"`
	ID   string `json:"id"`
	// Revision counts the saves after the first.
	Revision int64 `json:"revision"`
	// Active is set for the one profile of the kind that was activated last.
	Active bool `json:"active,omitempty"`

	// Model, BaseURL and Key are those of an LLM profile. Key's entry holds the member "value".
	Model   string    `json:"model,omitempty"`
	BaseURL string    `json:"base_url,omitempty"`
	Key     SecretRef `json:"key,omitzero"`

	// Document is an agent profile as its user sent it: an object.
	Document json.RawMessage `json:"document,omitempty"`
}

// LaunchedProfile is the agent profile that a conversation began with (VersionProfiles).
type LaunchedProfile struct {
	ID       string `json:"agent_profile_id"`
	Revision int64  `json:"revision"`
}

// ValidProfileName reports whether s can be the name of a profile: [A-Za-z0-9._-]{1,64}.
func ValidProfileName(s string) bool {
	return s != "" && len(s) <= MaxProfileName && strings.Trim(s,
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// ProfileKeyPath is the path of the key of a user's LLM profile in the secret store.
func ProfileKeyPath(user, id string) string { return userSecrets(user) + "profiles/" + id }

func profileTable() *memdb.TableSchema {
	return newTable(tableProfiles,
		newIndex(indexID, func(p *Profile) []byte {
			if p.UserID == "" || p.Name == "" {
				return nil
			}
			return keyOf(p.UserID, string(p.Kind), p.Name)
		}),
		newIndex(indexLookup, func(p *Profile) []byte { return keyOf(p.UserID, p.ID) }))
}

// secretRefs implements referrer.
func (p *Profile) secretRefs() refSet { return refSet{p.Key} }

// textBytes returns the bytes of a profile's texts.
func (p *Profile) textBytes() int {
	return 3*len(p.UserID) + 2*len(p.Name) + 2*len(p.ID) + len(p.Model) + len(p.BaseURL) +
		textBytes(reflect.ValueOf(p.Document))
}

// endpoint returns where an LLM profile leads.
func (p *Profile) endpoint() ModelEndpoint {
	return ModelEndpoint{Model: p.Model, BaseURL: p.BaseURL, Key: p.Key.Path, Profile: p.ID}
}

// AppliedTo reports whether settings have what an LLM profile says. s may be nil.
func (p *Profile) AppliedTo(s *Settings) bool {
	return s != nil && p.Key == s.LLMAPIKey && p.Model == valueOr(s.Values.LLMModel, "") &&
		p.BaseURL == valueOr(s.Values.LLMBaseURL, "")
}

// applyTo returns the settings that lead where an LLM profile does. old may be nil.
func (p *Profile) applyTo(old *Settings, user string) *Settings {
	s := &Settings{UserID: user, Values: DefaultSettings()}
	if old != nil {
		*s = *old
	}
	s.Values.LLMModel, s.Values.LLMBaseURL, s.LLMAPIKey = textOrNil(p.Model), textOrNil(p.BaseURL), p.Key
	s.leave(old, true)
	return s
}

// Profiles lists a user's profiles of a kind, by name.
func (v *View) Profiles(userID string, kind ProfileKind) []*Profile {
	return collect(withPrefix[Profile](v.txn, tableProfiles, indexID, prefixOf(userID, string(kind))))
}

// Profile finds a user's profile by its name, nil for none.
func (v *View) Profile(userID string, kind ProfileKind, name string) *Profile {
	return first[Profile](v.txn, tableProfiles, indexID, keyOf(userID, string(kind), name))
}

// ProfileByID finds a user's profile by its id, nil for none.
func (v *View) ProfileByID(userID string, kind ProfileKind, id string) *Profile {
	return profileByID(v.txn, userID, kind, id)
}

func profileByID(txn *memdb.Txn, userID string, kind ProfileKind, id string) *Profile {
	if id == "" {
		return nil
	}
	p := first[Profile](txn, tableProfiles, indexLookup, keyOf(userID, id))
	if p == nil || p.Kind != kind {
		return nil
	}
	return p
}

// KeyOf returns the key for a user's endpoint: that of its LLM profile while the profile leads
// there, else what the settings have for it (Settings.KeyOf).
func (v *View) KeyOf(
	userID string, e ModelEndpoint, leads func(model, baseURL string) string,
) (ref SecretRef, stored bool) {
	p := v.ProfileByID(userID, ProfileLLM, e.Profile)
	if p != nil && leads(p.Model, p.BaseURL) == leads(e.Model, e.BaseURL) {
		return p.Key, e.Key == "" || !p.Key.IsZero()
	}
	return v.Settings(userID).KeyOf(e, leads)
}

// textOrNil returns nil for "".
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
