package local

import "testing"

func TestStartTimeOf(t *testing.T) {
	for stat, want := range map[string]string{
		"7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 14 0 4711 100 5 0": "4711",
		"7 (nomad) Z 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 4711 0 0 0":   "",
		"7 (nomad) X 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 0 0 4711 0 0 0":   "",
		// The first thread has ended, the others have the sockets open.
		"7 (nomad) Z 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 6 0 4711 0 0 0":  "4711",
		"7 (nomad) Z 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 12 0 4711 0 0 0": "4711",
		"":              "",
		"7 (nomad) S 1": "",
	} {
		if got := startTimeOf([]byte(stat)); got != want {
			t.Errorf("%q: %q, want %q", stat, got, want)
		}
	}
}
