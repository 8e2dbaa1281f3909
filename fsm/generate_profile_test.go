package fsm

import (
	"encoding/json"

	"pgregory.net/rapid"
)

// genProfileBody is genBody for profiles, single settings and single custom secrets.
func genProfileBody(t *rapid.T, c CommandType) (string, Body) {
	user, name := genUser().Draw(t, "saving"), oneOf("fast", "slow", "a/b").Draw(t, "name")
	kind := rapid.SampledFrom([]ProfileKind{ProfileLLM, ProfileAgent, "x"}).Draw(t, "kind")
	id := oneOf("id1", "id2", "id3").Draw(t, "id")
	switch c {
	case SettingsPatch:
		set := rapid.SliceOfN(oneOf("language", "llm_model", "mcp_config", "agent_kind", "none"), 0, 3)
		return user, &SettingsPatchBody{Set: set.Draw(t, "set"), SettingsPutBody: *genSettings(t)}
	case ProfilePut:
		b := &ProfilePutBody{Profile: Profile{Kind: kind, Name: name, ID: id}}
		if kind == ProfileAgent {
			b.Profile.Document = json.RawMessage(oneOf(`{"agent_kind":"acp"}`, `{}`, `[]`).Draw(t, "document"))
			return user, b
		}
		b.FromSettings = rapid.IntRange(0, 3).Draw(t, "from settings") == 0
		b.KeepKey = rapid.IntRange(0, 3).Draw(t, "keep key") == 0
		b.Profile.Model = oneOf("", "gpt-5", "qwen/x").Draw(t, "model")
		b.Profile.BaseURL = oneOf("", "https://a").Draw(t, "base URL")
		b.Profile.Key = genRef("profile").Draw(t, "key")
		return user, b
	case ProfileDelete:
		return user, &ProfileDeleteBody{Kind: kind, Name: name}
	case ProfileRename:
		return user, &ProfileRenameBody{Kind: kind, Name: name, NewName: oneOf("fast", "slow").Draw(t, "new name")}
	case ProfileActivate:
		if kind == ProfileAgent {
			return user, &ProfileActivateBody{Kind: kind, ID: id}
		}
		return user, &ProfileActivateBody{Kind: kind, Name: name}
	case CustomSecretPut:
		return user, &CustomSecretPutBody{Secret: CustomSecret{
			Name: oneOf("A", "B").Draw(t, "secret"), Ref: genRef("custom").Draw(t, "ref"),
		}}
	case CustomSecretUpdate:
		return user, &CustomSecretUpdateBody{
			Name: oneOf("A", "B").Draw(t, "secret"), NewName: oneOf("A", "B", "").Draw(t, "new name"),
			Description: oneOf("", "d").Draw(t, "description"),
		}
	default:
		return user, &CustomSecretDeleteBody{Name: oneOf("A", "B").Draw(t, "secret")}
	}
}
