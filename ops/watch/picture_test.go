package watch

import (
	"encoding/xml"
	"strings"
	"testing"
	"time"
)

// A picture has the panels that it should, in the colours of their bounds.
func TestPicture_DrawsTheKeyPanels(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1000, 0)
	for page, titles := range pictured() {
		text, err := Picture(page, begin, begin.Add(time.Minute), func(PanelQuery, string) ([]Series, error) {
			return []Series{{Name: "n1 <a>", Points: [][2]float64{{1000, 0}, {1010, 0}, {1050, 0}}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(text, new(struct{})); err != nil {
			t.Errorf("%s is no XML: %v", page, err)
		}
		for _, title := range titles {
			if !strings.Contains(string(text), ">"+title+"</text>") {
				t.Errorf("%s has no panel %q", page, title)
			}
		}
		if red := strings.Count(string(text), `fill="red">Off`); page == "oncall" && red != 4 {
			t.Errorf("%d flags are red at 0, want the four that are bad there", red)
		}
	}
}
