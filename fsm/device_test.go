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
	f.do("", &APIKeyUsedBody{Uses: []APIKeyUse{{ID: f.store.View().APIKeyByLookup("key-1").ID, At: f.now}}})
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

// TestDevices_LoseAnAnswer: a device that asks again has its one key with another value, until it used it.
func TestDevices_LoseAnAnswer(t *testing.T) {
	t.Parallel()
	f := withCredentials(t, ProtocolVersion)
	own := f.do("", &APIKeyCreateBody{Lookup: "own", Hash: sha("own"), UserID: "ada"}).APIKey.ID
	f.do("", &DeviceAskBody{Hash: sha("d"), UserCode: sha("u"), Name: "terminal"})
	f.do("ada", &DeviceAllowBody{UserCode: sha("u"), KeyID: own})
	redeem := func(n string) *DeviceRedeemBody {
		return &DeviceRedeemBody{Hash: sha("d"), Lookup: "key-" + n, KeyHash: sha("k" + n)}
	}
	lost := f.do("", redeem("1")).APIKey
	got := f.do("", redeem("2")).APIKey
	v := f.store.View()
	if got.ID != lost.ID || v.APIKeyByLookup("key-1") != nil || v.APIKeyByLookup("key-2").Hash != sha("k2") {
		t.Errorf("the device has %+v, and had %+v", got, lost)
	}
	_ = f.fails(CodeConflict, "", redeem("2"))
	f.do("", &APIKeyUsedBody{Uses: []APIKeyUse{{ID: got.ID, At: f.now}}})
	_ = f.fails(CodeNotFound, "", redeem("3"))
	f.do("", &APIKeyRevokeBody{ID: got.ID})
	_ = f.fails(CodeUnauthorized, "", redeem("3"))
}

// TestDevices_AreBounded: anyone may ask, of one network a few. None makes room but what has expired.
func TestDevices_AreBounded(t *testing.T) {
	t.Parallel()
	f := withCredentials(t, ProtocolVersion)
	own := f.do("", &APIKeyCreateBody{Lookup: "own", Hash: sha("own"), UserID: "ada"}).APIKey.ID
	ask := func(i, network int) *DeviceAskBody {
		f.now = f.now.Add(time.Millisecond - time.Second)
		return &DeviceAskBody{
			Hash: sha(fmt.Sprint("d", i)), UserCode: sha(fmt.Sprint("u", i)), Name: "n", Network: fmt.Sprint(network),
		}
	}
	for i := range MaxDevices {
		f.do("", ask(i, i/MaxDevicesOfNetwork))
		if i == 0 {
			f.do("ada", &DeviceAllowBody{UserCode: sha("u0"), KeyID: own})
		}
		if i == MaxDevicesOfNetwork {
			_ = f.fails(CodeLimit, "", ask(MaxDevices, 0))
		}
	}
	_ = f.fails(CodeLimit, "", ask(MaxDevices, -1))
	if d := f.store.View().Device(sha("d0")); d == nil || d.UserID != "ada" {
		t.Errorf("the device that was allowed is %+v", d)
	}
	f.now = f.store.View().Device(sha("d0")).Until.Add(time.Second)
	f.do("", ask(MaxDevices, -1))
}
