package apifuzz

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
)

// rawJSON is written unchanged.
type rawJSON string

// junk returns a value that is valid almost nowhere.
func junk(rng *rand.Rand) any {
	return pick(rng, []any{
		nil, true, 0, -1, 1.5, "", " ", "\x00", "NaN", rawJSON("1e999"), rawJSON("-0"), rawJSON("9223372036854775808"),
		rawJSON("1" + strings.Repeat("0", 400)),
		rawJSON(`"\ud800"`), rawJSON(`"\ud83d\ude00\udc00"`), rawJSON("0.1e-999"), rawJSON("\"\xff\xfe\""), rawJSON("NaN"),
		rawJSON("'x'"), rawJSON("01"), rawJSON("[1,]"),
		[]any{}, map[string]any{}, []any{nil}, map[string]any{"": nil}, map[string]any{"__proto__": map[string]any{"x": 1}},
		rawJSON(
			strings.Repeat("[", 70) + strings.Repeat("]", 70),
		), rawJSON(strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)),
		rawJSON("[" + strings.Repeat("0,", 1500) + "0]"), strings.Repeat("a", 70_000), strings.Repeat("\u0301", 5000),
		"a\r\nX-Evil: 1", "../../x", strings.Repeat("é", 300),
		"9999-99-99T99:99:99Z", "00000000-0000-0000-0000-000000000000", "{bad", "1e5", "0x10", "١٢٣",
	})
}

// breakSome replaces one place of a value with an invalid one.
func breakSome(rng *rand.Rand, v any) any {
	var places []func(func(any) any)
	collect(v, func(set func(func(any) any)) { places = append(places, set) })
	if len(places) == 0 || rng.IntN(12) == 0 {
		return junk(rng)
	}
	pick(rng, places)(func(old any) any {
		if secret, is := old.(secretText); is {
			// The value must not leak from a wrong place either.
			return pick(rng,
				[]any{
					[]any{string(secret)},
					map[string]any{"x": string(secret)},
					string(secret) + strings.Repeat("x", 70_000),
					[]any{[]any{map[string]any{string(secret): string(secret)}}},
				})
		}
		return junk(rng)
	})
	if m, is := v.(map[string]any); is && rng.IntN(4) == 0 {
		m[pick(rng,
			[]string{
				"extra",
				"",
				"constructor",
				"a\x00b",
				strings.Repeat("k", 300),
				"user_id",
				"created_by_user_id",
				"operator",
			})] = junk(rng)
	}
	return v
}

// collect calls add with a setter for every member and element.
func collect(v any, add func(func(func(any) any))) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range sorted(v) {
			add(func(change func(any) any) { v[name] = change(v[name]) })
			collect(v[name], add)
		}
	case []any:
		for i := range v {
			add(func(change func(any) any) { v[i] = change(v[i]) })
			collect(v[i], add)
		}
	}
}

// encode encodes a value as JSON. With twice, some members are repeated and some names are
// escaped: JSON allows both, but parsers differ.
func encode(rng *rand.Rand, v any, twice bool) []byte {
	var b bytes.Buffer
	write(&b, rng, v, twice)
	return b.Bytes()
}

func write(b *bytes.Buffer, rng *rand.Rand, v any, twice bool) {
	switch v := v.(type) {
	case rawJSON:
		b.WriteString(string(v))
	case map[string]any:
		b.WriteByte('{')
		first := true
		member := func(name string, value any) {
			if !first {
				b.WriteByte(',')
			}
			first = false
			write(b, rng, name, false)
			b.WriteByte(':')
			write(b, rng, value, twice)
		}
		for _, name := range sorted(v) {
			if twice && rng.IntN(3) == 0 {
				member(name, junk(rng))
			}
			member(name, v[name])
			if twice && rng.IntN(3) == 0 {
				member(strings.ToUpper(name), v[name])
			}
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			write(b, rng, e, twice)
		}
		b.WriteByte(']')
	default:
		raw, err := json.Marshal(v)
		if err != nil { // a number without a JSON form
			raw = []byte("null")
		}
		b.Write(raw)
	}
}

// breakBytes changes the encoded body.
func breakBytes(rng *rand.Rand, body []byte) []byte {
	switch rng.IntN(9) {
	case 0:
		return body[:rng.IntN(len(body)+1)]
	case 1:
		return append(body, pick(rng, []string{"x", "{}", "\x00", "]", " \n\n", "\xff"})...)
	case 2:
		return append([]byte("\xef\xbb\xbf"), body...)
	case 3:
		return nil
	case 4:
		return []byte(pick(rng,
			[]string{"null", "[]", `""`, "0", " ", "{", "}", `{"a"`, `{"a":1,}`, "\x1f\x8b\x08", "<xml/>", "a=b&c=d"}))
	case 5:
		return []byte(strings.Repeat("[", 100_000))
	case 6:
		return []byte("[" + strings.Repeat("{},", 210_000) + "{}]")
	case 7:
		at := rng.IntN(len(body) + 1)
		return append(append(append([]byte(nil), body[:at]...), byte(rng.IntN(256))), body[at:]...)
	default:
		out := make([]byte, 0, 2*len(body))
		for _, c := range body { // UTF-16
			out = append(out, c, 0)
		}
		return out
	}
}
