package wire

// DeviceCodes are what a device polls with and what its user allows it by (RFC 8628).
type DeviceCodes struct {
	DeviceCode              string `json:"device_code"`
	UserCode                string `json:"user_code"`
	VerificationURI         string `json:"verification_uri"`
	VerificationURIComplete string `json:"verification_uri_complete"`
	// ExpiresIn and Interval are in seconds.
	ExpiresIn int `json:"expires_in"`
	Interval  int `json:"interval"`
}

// DeviceToken is the API key of a device.
type DeviceToken struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"`
	// ExpiresIn is in seconds, null for a key that does not end by itself.
	ExpiresIn *int `json:"expires_in"`
}

// DeviceError is why a device gets no key, or none yet, in the words of RFC 8628.
type DeviceError struct {
	Error string `json:"error"`
}

// Device is a device that waits to be allowed, and whom its key would act for.
type Device struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	User    string `json:"user"`
}
