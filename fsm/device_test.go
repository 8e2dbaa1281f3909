package fsm

import (
	"fmt"
	"testing"
	"time"
)

// TestDevices_GetAKeyOfTheirOwn: who allows a device gives it a key, once and in time; what ends the key
// that it was allowed with takes the request along.
func TestDevices_GetAKeyOfTheirOwn(t *testing.T) {
	f := withCredentials(t, ProtocolVersion)
	own := f.do("", &APIKeyCreateBody{Lookup: "own", Hash: sha("own"), UserID: "ada"}).APIKey.ID
	code := func(want Code, user string, body Body) {
		t.Helper()
		if _, err := f.apply(f.command(user, body)); CodeOf(err) != want {
			t.Errorf("%T of %q: %v, want %q", body, user, err, want)
		}
	}
	ask := func(name string) *DeviceAskBody {
		return &DeviceAskBody{Hash: sha("d" + name), UserCode: sha("u" + name), Name: "terminal " + name, Address: "10.0.0.1"}
	}
	allow := func(name string) *DeviceAllowBody { return &DeviceAllowBody{UserCode: sha("u" + name), KeyID: own} }
	redeem := func(name string) *DeviceRedeemBody {
		return &DeviceRedeemBody{Hash: sha("d" + name), Lookup: "key-" + name, KeyHash: sha("k" + name)}
	}
	f.do("", ask("1"))
	code(CodeConflict, "", ask("1"))
	code(CodeNotFound, "", redeem("1"))
	code(CodeNotFound, "ada", allow("2"))
	code(CodeUnauthorized, "bob", allow("1"))
	f.do("ada", allow("1"))
	code(CodeNotFound, "ada", allow("1"))
	if d := f.store.View().DeviceByUserCode(sha("u1"), f.now); d != nil {
		t.Errorf("an allowed device waits: %+v", d)
	}
	if k := f.do("", redeem("1")).APIKey; k.UserID != "ada" || k.Name != "terminal 1" || k.IsOperator() {
		t.Errorf("the device's key is %+v", k)
	}
	code(CodeNotFound, "", redeem("1"))

	f.do("", ask("late"))
	f.do("", ask("later"))
	f.do("ada", allow("later"))
	f.now = f.now.Add(DeviceAge)
	code(CodeNotFound, "ada", allow("late"))
	code(CodeNotFound, "", redeem("later"))

	f.do("", ask("revoked"))
	f.do("ada", allow("revoked"))
	f.do("", &APIKeyRevokeBody{ID: own})
	code(CodeNotFound, "", redeem("revoked"))
}

// TestDevices_AreBounded: anyone may ask, so the oldest request makes room.
func TestDevices_AreBounded(t *testing.T) {
	f := withCredentials(t, ProtocolVersion)
	for i := range MaxDevices + 1 {
		f.now = f.now.Add(time.Millisecond - time.Second)
		f.do("", &DeviceAskBody{Hash: sha(fmt.Sprint("d", i)), UserCode: sha(fmt.Sprint("u", i)), Name: "n"})
	}
	v := f.store.View()
	if v.Device(sha("d0")) != nil || v.Device(sha("d1")) == nil || v.Device(sha(fmt.Sprint("d", MaxDevices))) == nil {
		t.Error("another request than the oldest made room")
	}
}
