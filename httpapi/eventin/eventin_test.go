package eventin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/eventcut"
	"bivouac.dev/bivouac/httpapi/eventin"
)

// TestRead_CutsWhatIsTooLarge: an event above 6 MiB is kept with its head, its small members and the
// beginnings of its large texts, which say that they were cut.
func TestRead_CutsWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	const head = `"id":"e1","kind":"ObservationEvent","source":"environment","timestamp":"2026-01-02T03:04:05"`
	for name, text := range map[string]string{
		"as it is":    `{` + head + `,"a":"` + strings.Repeat("x", 5<<20) + `"}`,
		"one text":    `{` + head + `,"n":12345678901234567890,"a":{"b":["` + strings.Repeat("ä", 5<<20) + `"]}}`,
		"many texts":  `{` + head + `,"a":[` + strings.Repeat(`"`+strings.Repeat("y", 1<<19)+`",`, 20) + `1]}`,
		"escapes":     `{` + head + `,"a":"` + strings.Repeat(`\n\"\u00e4\ud83d\ude00`, 1<<18+1<<16) + `"}`,
		"small parts": `{` + head + `,"a":[` + strings.Repeat(`"y",`, 7<<18) + `1]}`,
	} {
		events, err := eventin.Read([]json.RawMessage{json.RawMessage(text)})
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		got := string(events[0].Text)
		var e struct{ ID, Kind string }
		if err := json.Unmarshal(events[0].Text, &e); err != nil || e.ID != "e1" || e.Kind != "ObservationEvent" {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
		marked := strings.Contains(got, "bytes are kept]") || strings.Contains(got, "more than can be kept")
		if len(got) > eventcut.MaxEvent || marked != (name != "as it is") {
			t.Errorf("%s: %d bytes of %d, marked: %v", name, len(got), len(text), marked)
		}
		if name == "one text" && (!strings.Contains(got, "12345678901234567890") ||
			!strings.Contains(got, fmt.Sprintf("[cut: %d of %d bytes are kept]", 1<<20, 10<<20))) {
			t.Errorf("%s: what is left is %q", name, got[len(got)-200:])
		}
	}
}
