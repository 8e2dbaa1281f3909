package git

import (
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// Providers are the names of the provider types, in the order of upstream (API.md, "Enumerations").
func Providers() []string {
	return []string{
		string(fsm.ProviderGitHub), string(fsm.ProviderGitLab), string(fsm.ProviderBitbucket),
		string(fsm.ProviderBitbucketDataCenter), string(fsm.ProviderForgejo), string(fsm.ProviderAzureDevOps),
		string(fsm.ProviderEnterpriseSSO),
	}
}

// Token is one entry of a provider_tokens map.
type Token struct {
	Provider fsm.ProviderType
	// Value is "" if blank, null or absent.
	Value  string
	UserID *string
	Host   *string
}

// ReadTokens reads the member provider_tokens, sorted by name.
func ReadTokens(o decode.Object) []Token {
	if !o.NotNull("provider_tokens", decode.KindDict) {
		return nil
	}
	dict, ok := o.Masked().Dict("provider_tokens")
	if !ok {
		return nil
	}
	var out []Token
	for _, name := range decode.SortedKeys(dict.Members) {
		if !slices.Contains(Providers(), name) {
			f := decode.NotOneOf(Providers())
			// Somebody may have sent a token as the name, so it is not echoed.
			o.Problems.Add(f.Type, decode.At(dict.Loc, decode.PlainOr(name), "[key]"), f.Message, decode.PlainOr(name),
				f.Context)
			continue
		}
		if !dict.NotNull(name, decode.KindObject) {
			continue
		}
		if one, ok := dict.Object(name); ok {
			out = append(out, readToken(fsm.ProviderType(name), one))
		}
	}
	return out
}

func readToken(provider fsm.ProviderType, o decode.Object) Token {
	t := Token{
		Provider: provider,
		Value:    strings.TrimSpace(decode.OrZero(o.Text("token", fsm.MaxParagraph))),
		UserID:   o.Text("user_id", fsm.MaxName),
		Host:     o.Text("host", fsm.MaxName),
	}
	if t.Host != nil {
		host := strings.TrimSpace(*t.Host)
		if t.Host = &host; host == "" {
			t.Host = nil
		} else if _, err := parseHost(host); err != nil {
			o.Rule("host", err.Error())
		}
	}
	return t
}

// Row returns the user's provider, without a reference to the token.
func (t Token) Row(user string) fsm.Provider {
	return fsm.Provider{UserID: user, Type: t.Provider, Host: t.Host, ExternalUserID: t.UserID}
}

// KeepHosts fills in the stored hosts where the request has none.
func KeepHosts(sent []Token, stored []*fsm.Provider) []Token {
	out := slices.Clone(sent)
	for i := range out {
		if p := find(stored, out[i].Provider); p != nil && out[i].Host == nil {
			out[i].Host = p.Host
		}
	}
	return out
}

// find returns the stored provider of a type, nil if there is none.
func find(stored []*fsm.Provider, provider fsm.ProviderType) *fsm.Provider {
	i := slices.IndexFunc(stored, func(p *fsm.Provider) bool { return p.Type == provider })
	if i < 0 {
		return nil
	}
	return stored[i]
}
