package native

import (
	"fmt"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// What was long ago read of files and commands takes most of a history, and is read again at little
// cost. So the outputs of old calls are shortened before anything is summarized. It is done for many
// at once and then for a long time not again, since servers cache what requests begin with.

const (
	// The newest answers with calls keep their outputs whole: at least two, at most eight, and up to
	// wholePart of the window; four where that is unknown.
	fewestWhole, someWhole, mostWhole = 2, 4, 8
	wholePart                         = 0.25
	// longOutput is the length above which an old output is shortened, in bytes. Its first and last
	// shortOutput stay.
	longOutput  = 1500
	shortOutput = 400
	// roomAfter is the part of the window that a shortened history may take at most.
	roomAfter = 0.7
	// worthwhile is the part that must go for a history that the server finds too long.
	worthwhile = 0.6
)

// shown is what the model is shown of the events, with old outputs as short as they have become.
func (e *Engine) shown(events []event.Event) []event.Event {
	e.mu.Lock()
	upTo := e.shortened
	e.mu.Unlock()
	return shortenedTo(view(events), upTo)
}

// shortenedTo returns the view with the outputs shortened up to the batch of an id.
func shortenedTo(shown []event.Event, upTo string) []event.Event {
	last := -1
	for i, ev := range shown {
		if b, is := ev.(*batch); is && b.ID == upTo && upTo != "" {
			last = i
		}
	}
	for i := range last + 1 {
		if b, is := shown[i].(*batch); is {
			short := *b
			short.short = true
			shown[i] = &short
		}
	}
	return shown
}

// shorten shortens old outputs if the history is short enough for the model then, and reports
// whether it did. refused says that the server found the history too long.
func (e *Engine) shorten(c *client, events []event.Event, refused bool) bool {
	shown := view(events)
	upTo := newestShort(shown, int(wholePart*bytesPerToken*float64(c.window.size())))
	if upTo == "" {
		return false
	}
	before := bytesOf(messages(e.shown(events), false))
	short := shortenedTo(shown, upTo)
	if refused && float64(bytesOf(messages(short, false))) > worthwhile*float64(before) ||
		c.window.exceeds(short, roomAfter) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shortened = upTo
	return true
}

// newestShort is the id of the newest batch whose outputs are shortened, "" for none. whole are the
// bytes that may stay whole, 0 is unknown.
func newestShort(shown []event.Event, whole int) string {
	n, bytes, most := 0, 0, mostWhole
	if whole == 0 {
		most = someWhole
	}
	for i := len(shown) - 1; i >= 0; i-- {
		b, is := shown[i].(*batch)
		if !is {
			continue
		}
		n, bytes = n+1, bytes+bytesOf(b.messages(map[string]bool{}, false))
		if n > most || n > fewestWhole && whole > 0 && bytes > whole {
			return b.ID
		}
	}
	return ""
}

// shortText is an old output, shortened.
func shortText(text string) string {
	if len(text) <= longOutput {
		return text
	}
	head, tail := shortOutput, len(text)-shortOutput
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[… %d bytes of this old output are left out; read or run it again if they are needed …]\n%s",
		text[:head], tail-head, text[tail:])
}
