package fsm

import "testing"

// What a batch has put counts for the commands behind it, and what it has not
// is as the batch found it.
func TestSettingsPut_KeepsWhatItsBatchPut(t *testing.T) {
	s := NewStore()
	put := func(index uint64, user string, v SettingsValues) Entry {
		return Entry{index, NewCommand(user+string(rune('a'+index)), benchNow, user, &SettingsPutBody{Values: v})}
	}
	s.ApplyBatch([]Entry{put(1, "ada", SettingsValues{LLMModel: ptr("one")}), put(2, "bob", SettingsValues{LLMModel: ptr("two")})})
	s.ApplyBatch([]Entry{
		put(3, "ada", SettingsValues{LLMModel: ptr("three")}), put(4, "ada", SettingsValues{}), put(5, "bob", SettingsValues{}),
	})
	for user, want := range map[string]string{"ada": "three", "bob": "two"} {
		if got := s.View().Settings(user).Values.LLMModel; got == nil || *got != want {
			t.Errorf("%s has %v, want %s", user, valueOr(got, "none"), want)
		}
	}
}
