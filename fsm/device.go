package fsm

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// The bounds of requests of devices.
const (
	// DeviceAge is how long a user may allow the request of a device, and the device fetch its key.
	DeviceAge = 10 * time.Minute
	// MaxDevices is how many requests there are. The oldest makes room for another: anyone may ask.
	MaxDevices = 1000
)

// Device is the request of a device, such as a terminal, for an API key of the user who allows it. Its
// codes are stored nowhere.
type Device struct {
	// Hash is the SHA-256, in hex, of the code that the device has, UserCode that of the one for people.
	Hash     string `json:"hash"`
	UserCode string `json:"user_code"`
	// Name is what the device calls itself, Address where it asked from.
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Until   time.Time `json:"until"`
	// UserID is who has allowed it, "" before; KeyID the API key that this was asked with, and ExpiresAt
	// when the device's key ends, nil for never.
	UserID    string     `json:"user_id,omitempty"`
	KeyID     int        `json:"key_id,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

func deviceTable() *memdb.TableSchema {
	table := endingTable(tableDevices, func(d *Device) (hash, user string, end time.Time) {
		return d.Hash, d.UserID, d.Until
	})
	table.Indexes[indexLookup] = newIndex(indexLookup, func(d *Device) []byte { return []byte(d.UserCode) })
	return table
}

// Device finds the request of a device by the hash of its code, nil for none. It may have expired.
func (v *View) Device(hash string) *Device {
	return first[Device](v.txn, tableDevices, indexID, []byte(hash))
}

// DeviceByUserCode finds the request of a device by the hash of the code for people, nil for none that
// waits to be allowed at a time.
func (v *View) DeviceByUserCode(hash string, now time.Time) *Device {
	d := first[Device](v.txn, tableDevices, indexLookup, []byte(hash))
	if d == nil || d.UserID != "" || !now.Before(d.Until) {
		return nil
	}
	return d
}

// DeviceAskBody notes the request of a device. A code that is taken is CodeConflict.
type DeviceAskBody struct {
	// Hash and UserCode are as in Device.
	Hash     string `json:"hash"`
	UserCode string `json:"user_code"`
	Name     string `json:"name"`
	Address  string `json:"address"`
}

// CommandType implements Body.
func (*DeviceAskBody) CommandType() CommandType { return DeviceAsk }

// check implements Body.
func (b *DeviceAskBody) check(r *rules) {
	r.hash("hash", b.Hash)
	r.hash("user_code", b.UserCode)
	r.text("name", b.Name, MaxName)
	r.text("address", b.Address, MaxName)
}

func (t *transaction) applyDeviceAsk(b *DeviceAskBody) (Result, *Error) {
	count := 0
	for _, d := range collect(withPrefix[Device](t.txn, tableDevices, indexTime, nil)) {
		if !t.now.Before(d.Until) {
			drop(t, tableDevices, d)
			continue
		}
		count++
	}
	taken := first[Device](t.txn, tableDevices, indexLookup, []byte(b.UserCode))
	if taken != nil || t.view().Device(b.Hash) != nil {
		return Result{}, Errorf(CodeConflict, "the device's code is taken: draw another")
	}
	if count >= MaxDevices {
		drop(t, tableDevices, first[Device](t.txn, tableDevices, indexTime+"_prefix", nil))
	}
	put(t, tableDevices, nil, &Device{
		Hash: b.Hash, UserCode: b.UserCode, Name: b.Name, Address: b.Address, Until: t.now.Add(DeviceAge),
	})
	return Result{}, nil
}

// DeviceAllowBody has Command.UserID allow the request of a device, once. One that is unknown, allowed
// or has expired is CodeNotFound, and a key that is not good CodeUnauthorized.
type DeviceAllowBody struct {
	UserCode string `json:"user_code"`
	KeyID    int    `json:"key_id"`
}

// CommandType implements Body.
func (*DeviceAllowBody) CommandType() CommandType { return DeviceAllow }

// check implements Body.
func (b *DeviceAllowBody) check(r *rules) {
	r.hash("user_code", b.UserCode)
	r.check(b.KeyID >= 1, "key_id must be at least 1")
}

func (t *transaction) applyDeviceAllow(b *DeviceAllowBody) (Result, *Error) {
	old := t.view().DeviceByUserCode(b.UserCode, t.now)
	if old == nil {
		return Result{}, Errorf(CodeNotFound, "no device waits with this code: it was used, has expired or is wrong")
	}
	if t.view().signsIn(b.KeyID, t.cmd.UserID, t.now) == nil {
		return Result{}, Errorf(CodeUnauthorized, "the key is not the user's, or is no longer good")
	}
	d := *old
	d.UserID, d.KeyID, d.ExpiresAt = t.cmd.UserID, b.KeyID, t.endOfCredential()
	put(t, tableDevices, old, &d)
	return Result{}, nil
}

// DeviceRedeemBody makes the key of a device that a user has allowed, as OwnKeyCreateBody does, and uses
// the request up. One that nobody has allowed is CodeNotFound, and one whose user could no longer make a
// key CodeUnauthorized. It sets Result.APIKey.
type DeviceRedeemBody struct {
	// Hash is that of the device's code. Lookup and KeyHash are the key's.
	Hash    string `json:"hash"`
	Lookup  string `json:"lookup"`
	KeyHash string `json:"key_hash"`
}

// CommandType implements Body.
func (*DeviceRedeemBody) CommandType() CommandType { return DeviceRedeem }

// check implements Body.
func (b *DeviceRedeemBody) check(r *rules) {
	r.hash("hash", b.Hash)
	r.id("lookup", b.Lookup)
	r.hash("key_hash", b.KeyHash)
}

func (t *transaction) applyDeviceRedeem(b *DeviceRedeemBody) (Result, *Error) {
	d := t.view().Device(b.Hash)
	if d == nil || d.UserID == "" || !t.now.Before(d.Until) {
		return Result{}, Errorf(CodeNotFound, "nobody has allowed this device, or it has its key")
	}
	if t.view().signsIn(d.KeyID, d.UserID, t.now) == nil {
		return Result{}, Errorf(CodeUnauthorized, "the key that allowed this device is no longer good")
	}
	if err := t.roomForOwnKey(d.UserID); err != nil {
		return Result{}, err
	}
	res, err := t.applyAPIKeyCreate(&APIKeyCreateBody{
		Lookup: b.Lookup, Hash: b.KeyHash, Name: d.Name, UserID: d.UserID, ExpiresAt: d.ExpiresAt,
	})
	if err == nil {
		drop(t, tableDevices, d)
	}
	return res, err
}
