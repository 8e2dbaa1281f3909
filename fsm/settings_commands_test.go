package fsm

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A command sees the settings that earlier commands of its batch stored, and otherwise those from
// before the batch.
func TestSettingsPut_KeepsWhatItsBatchPut(t *testing.T) {
	s := NewStore()
	put := func(index uint64, user string, v SettingsValues) Entry {
		return Entry{index, NewCommand(user+string(rune('a'+index)), benchNow, user, &SettingsPutBody{Values: v})}
	}
	s.ApplyBatch([]Entry{
		put(1, "ada", SettingsValues{LLMModel: ptr("one")}),
		put(2, "bob", SettingsValues{LLMModel: ptr("two")}),
	})
	s.ApplyBatch([]Entry{
		put(3, "ada",
			SettingsValues{LLMModel: ptr("three")}), put(4, "ada", SettingsValues{}), put(5, "bob", SettingsValues{}),
	})
	for user, want := range map[string]string{"ada": "three", "bob": "two"} {
		if got := s.View().Settings(user).Values.LLMModel; got == nil || *got != want {
			t.Errorf("%s has %v, want %s", user, valueOr(got, "none"), want)
		}
	}
}

// A sticky member keeps its stored value when none is sent. Every other member is replaced.
func TestSettingsPut_StickyMembers(t *testing.T) {
	f := newFixture(t)
	f.do("ada", &SettingsPutBody{Values: SettingsValues{
		LLMModel: ptr("m"), LLMBaseURL: ptr("u"), UserConsentsToAnalytics: ptr(true), Language: ptr("en"), Email: ptr("e"),
		MaxIterations: ptr(int64(3)), EnableDefaultCondenser: true,
	}})
	f.do("ada", &SettingsPutBody{})
	got := f.store.View().Settings("ada").Values
	want := SettingsValues{LLMModel: ptr("m"), LLMBaseURL: ptr("u"), UserConsentsToAnalytics: ptr(true)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestSettingsValues_TextBytes: no member with a text is left out of the count.
func TestSettingsValues_TextBytes(t *testing.T) {
	var v SettingsValues
	row := reflect.ValueOf(&v).Elem()
	for i := range row.NumField() {
		switch row.Field(i).Interface().(type) {
		case *string:
			row.Field(i).Set(reflect.ValueOf(ptr("four")))
		case *[]string:
			row.Field(i).Set(reflect.ValueOf(&[]string{"a", "bc"}))
		}
		if got, want := v.textBytes(), textBytes(row); got != want {
			t.Errorf("with %s %d bytes, want %d", row.Type().Field(i).Name, got, want)
		}
	}
	if v.textBytes() < 4*10 {
		t.Error("no texts were set")
	}
}
