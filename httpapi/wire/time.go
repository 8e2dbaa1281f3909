package wire

import "time"

// Time is a time in the API's format: RFC 3339 in UTC with "Z", six fraction digits or, when
// the fraction is zero, none (API.md, "Times").
type Time struct{ time.Time }

// At returns a time in the API's format.
func At(t time.Time) Time { return Time{t} }

// TimeOrNull is At for a time that may be absent.
func TimeOrNull(t *time.Time) *Time {
	if t == nil {
		return nil
	}
	return &Time{*t}
}

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	u := t.UTC().Truncate(time.Microsecond)
	layout := `"2006-01-02T15:04:05Z"`
	if u.Nanosecond() != 0 {
		layout = `"2006-01-02T15:04:05.000000Z"`
	}
	return []byte(u.Format(layout)), nil
}
