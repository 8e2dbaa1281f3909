package fsm

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// The bounds of requests of devices.
const (
	// DeviceAge is how long a user may allow the request of a device, and the device fetch its key.
	DeviceAge = 10 * time.Minute
	// MaxDevices is how many requests there are, MaxDevicesOfNetwork how many of them one network has: of
	// an IPv4 address, or of an IPv6 /48, which one site has. Anyone may ask.
	MaxDevices          = 1000
	MaxDevicesOfNetwork = 100
)

// Device is the request of a device, such as a terminal, for an API key of the user who allows it. Its
// codes are stored nowhere.
type Device struct {
	// Hash is the SHA-256, in hex, of the code that the device has, UserCode that of the one for people.
	Hash     string `json:"hash"`
	UserCode string `json:"user_code"`
	// Name is what the device calls itself, Address where it asked from, and Network what this is of.
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Network string    `json:"network,omitempty"`
	Until   time.Time `json:"until"`
	// UserID is who has allowed it, "" before; KeyID the API key that this was asked with, and ExpiresAt
	// when the device's key ends, nil for never.
	UserID    string     `json:"user_id,omitempty"`
	KeyID     int        `json:"key_id,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Made is the device's API key, 0 before it has asked for one.
	Made int `json:"made,omitempty"`
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

// DeviceAskBody notes the request of a device. A code that is taken is CodeConflict, and one request too
// many CodeLimit.
type DeviceAskBody struct {
	// Hash and UserCode are as in Device.
	Hash     string `json:"hash"`
	UserCode string `json:"user_code"`
	Name     string `json:"name"`
	Address  string `json:"address"`
	Network  string `json:"network,omitempty"`
}

// CommandType implements Body.
func (*DeviceAskBody) CommandType() CommandType { return DeviceAsk }

// check implements Body.
func (b *DeviceAskBody) check(r *rules) {
	r.hash("hash", b.Hash)
	r.hash("user_code", b.UserCode)
	r.text("name", b.Name, MaxName)
	r.text("address", b.Address, MaxName)
	r.text("network", b.Network, MaxName)
}

func (t *transaction) applyDeviceAsk(b *DeviceAskBody) (Result, *Error) {
	oldest := func() *Device { return first[Device](t.txn, tableDevices, indexTime+"_prefix", nil) }
	for d := oldest(); d != nil && !t.now.Before(d.Until); d = oldest() {
		drop(t, tableDevices, d)
	}
	taken := first[Device](t.txn, tableDevices, indexLookup, []byte(b.UserCode))
	if taken != nil || t.view().Device(b.Hash) != nil {
		return Result{}, Errorf(CodeConflict, "the device's code is taken: draw another")
	}
	if err := t.roomForDevice(b.Network); err != nil {
		return Result{}, err
	}
	put(t, tableDevices, nil, &Device{
		Hash: b.Hash, UserCode: b.UserCode, Name: b.Name, Address: b.Address, Network: b.Network,
		Until: t.now.Add(DeviceAge),
	})
	return Result{}, nil
}

// roomForDevice refuses a request when there are too many. None makes room for it, or whoever asks often
// could keep others from being allowed.
func (t *transaction) roomForDevice(network string) *Error {
	all, near := 0, 0
	for d := range withPrefix[Device](t.txn, tableDevices, indexTime, nil) {
		if all++; d.Network == network {
			near++
		}
	}
	if all >= MaxDevices || near >= MaxDevicesOfNetwork {
		return &Error{
			Code: CodeLimit, Message: "too many devices wait to be allowed: try again later", RetryAfter: limitRetry,
		}
	}
	return nil
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

// DeviceRedeemBody makes the key of a device that a user has allowed, as OwnKeyCreateBody does. A device
// that asks again has lost the answer: its key gets another value, unless it was used. A request that
// nobody has allowed, or whose key was used, is CodeNotFound, and one whose user could no longer make a
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
	if d.Made != 0 {
		return t.renewKey(d.Made, b)
	}
	if err := t.roomForOwnKey(d.UserID); err != nil {
		return Result{}, err
	}
	res, err := t.applyAPIKeyCreate(&APIKeyCreateBody{
		Lookup: b.Lookup, Hash: b.KeyHash, Name: d.Name, UserID: d.UserID, ExpiresAt: d.ExpiresAt,
	})
	if err == nil {
		made := *d
		made.Made = res.APIKey.ID
		put(t, tableDevices, d, &made)
	}
	return res, err
}

// renewKey replaces the value of a device's key that was never used.
func (t *transaction) renewKey(id int, b *DeviceRedeemBody) (Result, *Error) {
	old := first[APIKey](t.txn, tableAPIKeys, indexID, intKey(id))
	switch {
	case old == nil || !old.Valid(t.now):
		return Result{}, Errorf(CodeUnauthorized, "the device's key is no longer good")
	case old.LastUsedAt != nil:
		return Result{}, Errorf(CodeNotFound, "the device has its key")
	case first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(b.Lookup)) != nil:
		return Result{}, Errorf(CodeConflict, "the key's lookup part is taken: draw another key")
	}
	k := *old
	k.Lookup, k.Hash = b.Lookup, b.KeyHash
	put(t, tableAPIKeys, old, &k)
	t.keys = t.index
	return Result{APIKey: &k}, nil
}
