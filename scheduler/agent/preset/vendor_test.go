package preset

import (
	"net/url"
	"strings"
	"testing"
)

// TestVendors_EachNameHasOne: no prefix and no beginning tells two vendors.
func TestVendors_EachNameHasOne(t *testing.T) {
	t.Parallel()
	prefixes, begins := map[string]bool{}, map[string]bool{}
	for _, v := range Vendors() {
		for _, p := range v.Prefixes {
			if got, known := VendorOf(p + "/x"); prefixes[p] || !known || got.Prefixes[0] != v.Prefixes[0] ||
				BareModel(p+"/org/x") != "org/x" {
				t.Errorf("the prefix %s tells %v, and its model is sent as %q", p, got.Prefixes, BareModel(p+"/org/x"))
			}
			prefixes[p] = true
		}
		for _, b := range v.Begins {
			if got, known := VendorOf(strings.ToUpper(b) + "-9"); begins[b] || !known || got.Prefixes[0] != v.Prefixes[0] {
				t.Errorf("%s-9 tells %v, want %s", b, got.Prefixes, v.Prefixes[0])
			}
			begins[b] = true
		}
		for _, base := range []string{v.OpenAI, v.Anthropic, v.Gemini} {
			if u, err := url.Parse(base); base != "" && (err != nil || u.Host == "" || strings.HasSuffix(base, "/") ||
				(u.Scheme == "https") == v.Local) {
				t.Errorf("%s has the base URL %q", v.Prefixes[0], base)
			}
		}
	}
	if v, known := VendorOf("bedrock/x"); known || BareModel("bedrock/x") != "bedrock/x" ||
		BareModel("Qwen/Qwen3-Coder") != "Qwen/Qwen3-Coder" {
		t.Errorf("an unknown prefix tells %v", v.Prefixes)
	}
	if v, known := VendorOf(""); !known || v.Prefixes[0] != "openai" || BareModel("qwen3") != "qwen3" {
		t.Errorf("no name tells %v", v.Prefixes)
	}
}
