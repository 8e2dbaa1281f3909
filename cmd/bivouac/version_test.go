package main

import "testing"

func TestVersion_ARelease(t *testing.T) {
	if got := buildInfoOf("1.2.0~rc.1@0123abc"); got.Version != "1.2.0~rc.1" || got.Revision != "0123abc" {
		t.Errorf("%+v", got)
	}
	if got := buildInfoOf("44fe4d4"); got.Version != "44fe4d4" {
		t.Errorf("%+v", got)
	}
}
