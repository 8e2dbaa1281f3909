package httpapi

import "bivouac.dev/bivouac/httpapi/decode"

// maskMembers copies a JSON object without its values: each that is not null is masked. The members
// that keep names stay as they are.
func maskMembers(m map[string]any, keep ...string) map[string]any {
	if m == nil {
		return nil
	}
	out := make(map[string]any, len(m))
	for name, v := range m {
		out[name] = v
		if v != nil {
			out[name] = decode.Masked
		}
	}
	for _, name := range keep {
		out[name] = m[name]
	}
	return out
}
